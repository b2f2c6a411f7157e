"""Reads the rows of the option table (compiler/config/Options.def) for tests."""

import pathlib
import re

STATUSES = {"NotExecuted": "NotExecuted", "Missing": "Planned", "PartOf": "Planned", "PartOfVariants": "Planned", "Planned": "Planned"}


def path_of(enumerator, sections):
    words = re.sub(r"(?<!^)([A-Z])", r"_\1", enumerator).lower()
    section = next((name for name in sections if words.startswith(name + "_")), "")
    name = words[len(section) + 1:]
    return f"{section}.{name.upper() if section == 'env' else name}"


def option_rows(root):
    """(enumerator, path, status) of each option, in the order of the table."""
    options, sections = (re.sub(r"^\s*//[^\n]*", "", (pathlib.Path(root) / "compiler/config" / name).read_text(), flags=re.M)
                         for name in ("Options.def", "Sections.def"))
    names = re.findall(r'^SECTION\(\w+, "(\w+)"', sections, re.M)
    rows = []
    for row in re.findall(r"^OPTION\((\w+,.*?)\)$(?=\n(?:OPTION|#|\n|$))", options, re.M | re.S):
        enumerator, first = re.match(r'(\w+),\s*("|\w+)', row).groups()
        named = re.search(r'\.named\("([^"]+)"\)', row)
        status = "Executed" if first == '"' else STATUSES.get(first, "Checked")
        rows.append((enumerator, named.group(1) if named else path_of(enumerator, names), status))
    return rows
