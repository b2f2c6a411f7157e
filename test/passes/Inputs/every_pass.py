"""every_pass.py PASSES.DEF FOLDER...: each pass on each plan of the folders that has the level which it takes, as the plan is and
without one of its lines. A pass takes the plan, or refuses it with an id; nothing else.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SPLIT = "// -----\n"
LEVEL = re.compile(r"^shardc\.plan 2 (\w+) ", re.MULTILINE)
ID = re.compile(r"\[[a-z-]+\]$")


def passes_of(table):
    """The flags of passes by the level of their input, which is that of the preceding pass."""
    taken, level = {}, "logical"
    for flag, after in re.findall(r'^PASS\(\w+, "([a-z-]+)", (\w+),', table, re.MULTILINE):
        taken.setdefault(level, []).append(flag)
        level = after.lower()
    return taken


def variants(plan):
    """Yields the lines of the plan, then, for each line that neither opens nor closes a block, the lines without it."""
    lines = [line for line in plan.splitlines(keepends=True) if line.strip() and not line.strip().startswith("//")]
    yield lines
    for i, line in enumerate(lines):
        if i > 0 and not line.endswith("{\n") and line != "}\n":
            yield lines[:i] + lines[i + 1 :]


def plans_by_level(folders):
    found = {}
    for path in (path for folder in folders for path in sorted(pathlib.Path(folder).glob("*.plan"))):
        for plan in re.split(r"^// -----.*\n", path.read_text(), flags=re.MULTILINE):
            for text in map("".join, variants(plan)):
                if level := LEVEL.search(text):
                    found.setdefault(level[1], []).append(text)
    return found


def fault(flag, plans):
    """What is wrong with the pass on these plans, or None."""
    with tempfile.NamedTemporaryFile("w", suffix=".plan") as file:
        file.write(SPLIT.join(plans))
        file.flush()
        command = ["shardc-opt", f"--{flag}", "--split-input-file", file.name, "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    if done.returncode in (0, 1) and bool(errors) == bool(done.returncode) and all(map(ID.search, errors)):
        return None
    return f"--{flag}: status {done.returncode}\n{done.stderr[-500:]}"


def main():
    found = plans_by_level(sys.argv[2:])
    wrong, count = [], 0
    for level, flags in passes_of(pathlib.Path(sys.argv[1]).read_text()).items():
        count += len(flags) * len(found[level])
        for flag in flags:
            if fault(flag, found[level]):
                wrong += [f"{plan}{why}" for plan in found[level] if (why := fault(flag, [plan]))]
    print("\n".join(wrong) or f"{count} runs of passes")
    sys.exit(1 if wrong or count == 0 else 0)


main()
