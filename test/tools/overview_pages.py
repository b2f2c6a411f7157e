#!/usr/bin/env python3
"""Writes the pages that list other pages: docs/adr/README.md from titles and states of the decisions, and
docs/benchmarks/README.md from the figures in docs/benchmarks/*.json.

    overview_pages.py          writes both
    overview_pages.py --check  fails if one of them is out of date
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("case", "measure", "ours", "peer", "peer_is", "ratio", "hardware", "date", "commit")


def decision_of(path):
    """The number, title and state of a decision: in force, or what replaces it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number, title = re.fullmatch(r"# (\d+)\. (.+)", lines[0]).groups()
    state = " ".join(lines[1:6]).partition("Status: ")[2].partition(". ")[0].rstrip(".")
    if state in ("", "accepted"):
        state = "in force"
    return int(number), title, state


def decisions_page():
    rows = [(*decision_of(path), path.name) for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md"))]
    text = ("# Decisions\n\nThis page lists the decisions that shaped shardc, for people who change it. Each says what was decided, why,\n"
            "and what else was considered. It is made by `test/tools/overview_pages.py` from their titles and their lines\n"
            "`Status: ...`; a decision without one is in force.\n\n| | decision | state |\n|--:|---|---|\n")
    return text + "".join(f"| {number} | [{title}]({name}) | {state} |\n" for number, title, state, name in rows)


def figures_of(path):
    figures = json.loads(path.read_text(encoding="utf-8"))
    for figure in figures:
        unknown = set(figure) - set(FIELDS)
        missing = {"case", "measure", "ours", "hardware", "date"} - set(figure)
        if unknown or missing:
            sys.exit(f"{path.name}: unknown fields {sorted(unknown)}, missing {sorted(missing)} in {figure}")
    return figures


def cell(value):
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def benchmarks_page():
    text = ("# Benchmarks\n\nThis page has the present figure of each case, for people who want to know how fast shardc is. It is made by\n"
            "`test/tools/overview_pages.py` from the `.json` files beside it; the linked pages have commands and methods.\n"
            "Speeds are tokens/s per GPU. *Ratio* is how many times as fast shardc is, or takes as much time if it says so.\n")
    for path in sorted((ROOT / "docs/benchmarks").glob("*.json")):
        page = path.with_suffix(".md").name
        title = (ROOT / "docs/benchmarks" / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        text += f"\n## [{title}]({page})\n\n| case | measure | shardc | peer | ratio | hardware | date | commit |\n|---|---|--:|--:|--:|---|---|---|\n"
        for figure in figures_of(path):
            peer = cell(figure.get("peer")) + (f" ({figure['peer_is']})" if "peer_is" in figure else "")
            text += (f"| {figure['case']} | {figure['measure']} | {cell(figure['ours'])} | {peer} | {cell(figure.get('ratio'))} | "
                     f"{figure['hardware']} | {figure['date']} | {figure.get('commit', '')} |\n")
    return text + "\nWithout figures of their own: " + ", ".join(
        f"[{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({path.name})"
        for path in sorted((ROOT / "docs/benchmarks").glob("*.md"))
        if path.name != "README.md" and not path.with_suffix(".json").exists()) + ".\n"


def main():
    stale = []
    for name, text in (("docs/adr/README.md", decisions_page()), ("docs/benchmarks/README.md", benchmarks_page())):
        path = ROOT / name
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run test/tools/overview_pages.py")


if __name__ == "__main__":
    main()
