#!/usr/bin/env python3
"""Writes the pages that list other pages: the order of the site in mkdocs.yml from docs/README.md, docs/adr/README.md from
titles and states of decisions, and docs/benchmarks/README.md from the figures in docs/benchmarks/*.json. A page of
benchmarks gets the tables of its figures below its lines FIGURES, and README.md that of the figures with `front`. A table
that is written by hand must not repeat a figure. test/bench/record_figure.py describes the fields of a figure.

    overview_pages.py          writes all
    overview_pages.py --check  fails if one of them is out of date
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "bench"))
from record_figure import NAMES, key_of  # noqa: E402

FIGURES = re.compile(r"<!-- figures( [\w-]+)?: test/tools/overview_pages.py writes this table -->\n")
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
    """The rows of a file of figures. Ends the program if two rows are for the same case, or if a row cannot be read alone."""
    figures = json.loads(path.read_text(encoding="utf-8"))
    seen = set()
    for figure in figures:
        unknown = set(figure) - set(NAMES)
        missing = {"case", "measure", "ours", "hardware", "date"} - set(figure)
        if not {"commit", "recorded"} & set(figure):
            missing.add("commit")
        if unknown or missing:
            sys.exit(f"{path.name}: unknown fields {sorted(unknown)}, missing {sorted(missing)} in {figure}")
        if figure["case"].startswith("the same") or key_of(figure) in seen:
            sys.exit(f"{path.name}: the case of {figure} must be named in full, once for each hardware and peer")
        seen.add(key_of(figure))
    return figures


def cell(value):
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def columns_of(figures, has_more):
    """Head, alignment and function of each column for which a figure has a value; `more` columns stand on pages only."""
    def of(name):
        return lambda figure: cell(figure.get(name))

    def peer(figure):
        return of("peer")(figure) + (f" ({figure['peer_is']})" if "peer_is" in figure else "")

    def memory(figure):
        return ", ".join(cell(figure[key]) for key in ("gib", "peer_gib") if key in figure)

    columns = [("case", "---", of("case")), ("measure", "---", of("measure")), ("shardc", "--:", of("ours")),
               ("predicted", "--:", of("predicted")), ("peer", "--:", peer), ("ratio", "--:", of("ratio")),
               ("goal", "--:", of("goal")), ("GiB: shardc, peer", "--:", memory)]
    names = dict.fromkeys(name for figure in figures for name in figure.get("more", {}) if has_more)
    columns += [(name, "--:", lambda figure, name=name: cell(figure.get("more", {}).get(name))) for name in names]
    columns += [("hardware", "---", of("hardware")), ("date", "---", of("date")),
                ("commit", "---", lambda figure: figure.get("commit") or f"{figure['recorded']} (record)")]
    return [column for column in columns if any(column[2](figure) for figure in figures)]


def table_of(figures, has_more=True):
    heads, lines, functions = zip(*columns_of(figures, has_more))
    rows = [heads, *([function(figure) for function in functions] for figure in figures)]
    head, *rest = (f"| {' | '.join(row)} |\n" for row in rows)
    return head + f"|{'|'.join(lines)}|\n" + "".join(rest)


def with_figures(name, text, figures):
    """The text of a page, in which each table of figures is written anew. A figure belongs to the table with its name."""
    tables = {}
    for figure in figures:
        tables.setdefault(figure.get("table", ""), []).append(figure)
    found = [name.strip() for name in FIGURES.findall(text)]
    if sorted(found) != sorted(tables):
        sys.exit(f"{name} has tables of figures {found}, and the files have figures for those named {list(tables)}")
    return re.sub(f"({FIGURES.pattern}).*?{END}", lambda match: match[1] + table_of(tables[(match[2] or "").strip()]) + END, text, flags=re.DOTALL)


def check_copies(name, text, figures):
    """Ends the program if a table that is written by hand repeats a number of a figure. Numbers of two digits, and whole
    ones below 1,000, may agree by chance."""
    by_hand = re.sub(f"{FIGURES.pattern}.*?{END}", "", text, flags=re.DOTALL)
    numbers = {number for line in by_hand.splitlines() if line.startswith("|") for number in re.findall(r"\d[\d,.]*\d", line)}
    for figure in figures:
        for key in ("ours", "predicted", "peer", "ratio", "gib", "peer_gib"):
            value = cell(figure.get(key)).partition(" ")[0]
            if value in numbers and re.search("[,.]", value) and len(re.sub("^[0.]*|[,.]", "", value)) > 2:
                sys.exit(f"a table of {name} repeats {value}, a figure of '{figure['case']}'; refer to its row instead")


def title_of(path):
    return f"[{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({path.name})"


def benchmarks_page(figures):
    text = ("# Benchmarks\n\nThis page has the current figure of each case, for people who want to know how fast shardc is. The linked pages have\n"
            "commands, methods and further tables. `test/bench/record_figure.py`, and scripts with `--record`, write figures into\n"
            "the `.json` files beside this page, from which `test/tools/overview_pages.py` writes it. A ratio of 1.1 means that shardc\n"
            "is 1.1 times as fast as the peer; *of the time* means that shardc takes that part of the peer's time. A goal was set\n"
            "before the measurement. *Commit* is the measured version of shardc. If it was not noted, the column has the commit that\n"
            "recorded the figure (*record*).\n")
    pages = [path for path in sorted((ROOT / "docs/benchmarks").glob("*.md")) if path.name != "README.md"]
    main_rows = {path: [row for row in figures.get(path.stem, []) if "table" not in row] for path in pages}
    for path in pages:
        if main_rows[path]:
            text += f"\n## {title_of(path)}\n\n" + table_of(main_rows[path], has_more=False)
    return text + "\nFigures of these pages stand there only: " + ", ".join(title_of(path) for path in pages if not main_rows[path]) + ".\n"


def site_order():
    """mkdocs.yml with the sections and pages of docs/README.md. Ends the program if that lacks a page of docs/."""
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^## (.+)$|^- \[(.+?)\]\((.+?)\)", text, re.M)
    listed = [page for _, _, page in rows if page]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    lacks = sorted(pages - set(listed)) + sorted({page for page in listed if listed.count(page) > 1})
    if lacks:
        sys.exit(f"docs/README.md lists each page once; not so: {', '.join(lacks)}")
    lines = ["  - README.md"]
    for section, title, page in rows:
        lines.append(f'  - "{section}":' if section else f'      - "{title}": {page}')
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.sub(r"(?<=\nnav:\n).*(?=# end\n)", lambda _: "\n".join(lines) + "\n", site, flags=re.S)


def main():
    figures = {path.stem: figures_of(path) for path in sorted((ROOT / "docs/benchmarks").glob("*.json"))}
    front = [figure | {"table": "front", "predicted": None} for rows in figures.values() for figure in rows if "front" in figure]
    pages = {"mkdocs.yml": site_order(), "docs/adr/README.md": decisions_page(), "docs/benchmarks/README.md": benchmarks_page(figures)}
    for path, own in [(ROOT / "README.md", front), *((path, figures.get(path.stem, [])) for path in sorted((ROOT / "docs/benchmarks").glob("*.md")))]:
        name = str(path.relative_to(ROOT))
        if name not in pages:
            text = path.read_text(encoding="utf-8")
            check_copies(name, text, own)
            pages[name] = with_figures(name, text, own)
    stale = []
    for name, text in pages.items():
        path = ROOT / name
        if sys.argv[1:] != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run test/tools/overview_pages.py")


if __name__ == "__main__":
    main()
