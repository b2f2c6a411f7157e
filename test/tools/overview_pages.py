#!/usr/bin/env python3
"""Writes the pages that list other pages: docs/adr/README.md from titles and states of decisions, and
docs/benchmarks/README.md from the figures in docs/benchmarks/*.json. A page of benchmarks with the line FIGURES gets
the table of its own figures below that line. A page with tables of its own must contain the same figures.

    overview_pages.py          writes all
    overview_pages.py --check  fails if one of them is out of date
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("case", "measure", "ours", "gib", "predicted", "peer", "peer_is", "peer_gib", "ratio", "hardware", "date", "commit", "recorded")
FIGURES = "<!-- figures: test/tools/overview_pages.py writes this table -->\n"
END = "<!-- end of figures -->"


def decision_of(path):
    """The number, title and state of a decision: in force, or which decision replaces it or parts of it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number, title = re.fullmatch(r"# (\d+)\. (.+)", lines[0]).groups()
    state = " ".join(lines[1:6]).partition("Status: ")[2].partition(". ")[0].rstrip(".")
    return int(number), title, re.sub("^(accepted|$)", "in force", state, count=1)


def decisions_page():
    rows = [(*decision_of(path), path.name) for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md"))]
    text = ("# Decisions\n\nThis page lists the decisions that shaped shardc, for people who change it. Each page of a decision says what was\n"
            "decided, why, and what else was considered. `test/tools/overview_pages.py` writes this list from the titles and\n"
            "the lines `Status: ...`; a decision without such a line is in force.\n\n| | decision | status |\n|--:|---|---|\n")
    return text + "".join(f"| {number} | [{title}]({name}) | {state} |\n" for number, title, state, name in rows)


def figures_of(path):
    figures = json.loads(path.read_text(encoding="utf-8"))
    for figure in figures:
        unknown = set(figure) - set(FIELDS)
        missing = {"case", "measure", "ours", "hardware", "date"} - set(figure)
        if not {"commit", "recorded"} & set(figure):
            missing.add("commit")
        if unknown or missing:
            sys.exit(f"{path.name}: unknown fields {sorted(unknown)}, missing {sorted(missing)} in {figure}")
    return figures


def cell(value):
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def table_of(figures):
    """The table of a page's figures, with predictions and the memory of both sides if a figure has them."""
    has_memory = any("gib" in figure for figure in figures)
    is_predicted = any("predicted" in figure for figure in figures)
    head = ["case", "measure", "shardc"] + ["predicted"] * is_predicted + ["peer", "ratio"] \
        + ["GiB: shardc, peer"] * has_memory + ["hardware", "date", "commit"]
    text = f"| {' | '.join(head)} |\n|---|---|--:|{'--:|' * is_predicted}--:|--:|{'--:|' * has_memory}---|---|---|\n"
    for figure in figures:
        peer = cell(figure.get("peer")) + (f" ({figure['peer_is']})" if "peer_is" in figure else "")
        memory = ", ".join(cell(figure[key]) for key in ("gib", "peer_gib") if key in figure)
        commit = figure.get("commit") or f"{figure['recorded']} (record)"
        cells = [figure["case"], figure["measure"], cell(figure["ours"])] + [cell(figure.get("predicted"))] * is_predicted \
            + [peer, cell(figure.get("ratio"))] + [memory] * has_memory
        text += f"| {' | '.join(cells)} | {figure['hardware']} | {figure['date']} | {commit} |\n"
    return text


def with_figures(path):
    """The text of a page of benchmarks with the table of figures from the file beside it; None without such a table."""
    text = path.read_text(encoding="utf-8")
    if FIGURES not in text or not path.with_suffix(".json").exists():
        return None
    before, _, rest = text.partition(FIGURES)
    return before + FIGURES + table_of(figures_of(path.with_suffix(".json"))) + END + rest.partition(END)[2]


def check_copies(path):
    """Ends the program if a page that has its figures in tables of its own lacks the value of a figure."""
    text = path.read_text(encoding="utf-8")
    if FIGURES in text or not path.with_suffix(".json").exists():
        return
    for figure in figures_of(path.with_suffix(".json")):
        for value in (cell(figure[key]).partition(" ")[0] for key in ("ours", "peer", "ratio") if key in figure):
            if value not in text:
                sys.exit(f"{path.name} does not have {value}, the figure of '{figure['case']}' in {path.stem}.json")


def benchmarks_page():
    text = ("# Benchmarks\n\nThis page has the current figure of each case, for people who want to know how fast shardc is. The linked pages have\n"
            "commands and methods. `test/bench/record_figure.py` writes figures of runs into the `.json` files beside this page,\n"
            "from which `test/tools/overview_pages.py` writes it. A ratio of 1.1 means that shardc is 1.1 times as fast as the\n"
            "peer; *of the time* means that shardc takes that part of the peer's time. *Commit* is the measured version of shardc.\n"
            "If it was not noted, the column has the commit that recorded the figure (*record*).\n")
    for path in sorted((ROOT / "docs/benchmarks").glob("*.json")):
        page = path.with_suffix(".md").name
        title = (ROOT / "docs/benchmarks" / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        text += f"\n## [{title}]({page})\n\n" + table_of(figures_of(path))
    return text + "\nWithout figures of their own: " + ", ".join(
        f"[{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({path.name})"
        for path in sorted((ROOT / "docs/benchmarks").glob("*.md"))
        if path.name != "README.md" and not path.with_suffix(".json").exists()) + ".\n"


def main():
    stale = []
    pages = [("docs/adr/README.md", decisions_page()), ("docs/benchmarks/README.md", benchmarks_page())]
    for path in sorted((ROOT / "docs/benchmarks").glob("*.md")):
        check_copies(path)
        if (text := with_figures(path)) is not None:
            pages.append((f"docs/benchmarks/{path.name}", text))
    for name, text in pages:
        path = ROOT / name
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run test/tools/overview_pages.py")


if __name__ == "__main__":
    main()
