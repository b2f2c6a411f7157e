"""Reads the rows of the option tables for tests: Options.def, with paths from Job.def for options that plans
contain."""

import pathlib
import re


def option_rows(root):
    """(enumerator, path, status) of each option, in the order of the table."""
    job, options = (re.sub(r"^\s*//[^\n]*", "", (pathlib.Path(root) / path).read_text(), flags=re.M)
                    for path in ("runtime/plan/Job.def", "compiler/config/Options.def"))
    field = r'^JOB_(?:FIELD|UNSET)\((\w+), [^,]+, (\w+),\s+"([^"]+)"'
    paths = {f"{section}_{member}": path for section, member, path in re.findall(field, job, re.M)}
    row = r'^OPTION\(\s*(\w+),\s*(\w+|"[^"]+"),.*?"[^"]*",\s*"[^"]*",\s*(\w+)'
    return [(name, paths.get(path) or path.strip('"'), status)
            for name, path, status in re.findall(row, options, re.M | re.S)]
