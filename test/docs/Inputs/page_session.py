#!/usr/bin/env python3
"""Executes a page of docs/: writes its recipes, runs its commands, and compares their output with the page.

    page_session.py PAGE FOLDER [COPY...]

An indented block whose first line is `// NAME.recipe` (or `// NAME.test`) is written to FOLDER. In other indented blocks,
lines that begin with `$ ` are run there, one after the other; every line below one, up to the next, has to occur in its
output in that order, `...` standing for anything. A command has to succeed unless an `error:` is shown. Files named by
COPY are put into FOLDER first.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap


def blocks(text):
    """Indented blocks, without their indentation."""
    block = []
    for line in text.splitlines() + ["end"]:
        if line.startswith("    ") or (not line.strip() and block):
            block.append(line)
        elif block:
            whole = textwrap.dedent("\n".join(block)).strip("\n")
            yield from re.split(r"\n\n+(?=// [\w.-]+\.recipe\n|\$ )", whole)
            block = []


def shown_in(lines, output):
    """The first line that does not occur behind those before it; None if all do."""
    at = 0
    for line in lines:
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        found = re.compile(pattern).search(output, at)
        if not found:
            return line
        at = found.end()
    return None


def run(folder, command, lines):
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    missing = shown_in([line for line in lines if line.strip()], output)
    if missing is not None:
        sys.exit(f"$ {command}\n{output}\nthe page shows and this does not: {missing}")
    fails = any("error:" in line or "FAIL" in line for line in lines)
    if (done.returncode != 0) != fails:
        sys.exit(f"$ {command}\n{output}\nended with {done.returncode}")


def main():
    page, folder, copies = sys.argv[1], sys.argv[2], sys.argv[3:]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for copy in copies:
        (shutil.copytree if os.path.isdir(copy) else shutil.copy)(copy, os.path.join(folder, os.path.basename(copy)))
    commands = 0
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for block in blocks(text):
        name = re.match(r"// ([\w.-]+\.(?:recipe|test))$", block.split("\n", 1)[0])
        if name:
            with open(os.path.join(folder, name.group(1)), "w", encoding="utf-8") as file:
                file.write(block + "\n")
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.split("\n")
            run(folder, command, lines)
            commands += 1
    if commands == 0:
        sys.exit(f"{page} shows no command")
    print(f"{os.path.basename(page)}: {commands} commands")


if __name__ == "__main__":
    main()
