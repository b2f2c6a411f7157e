#!/usr/bin/env python3
"""Imports each configuration of a folder of Megatron-Bridge's by reading its text, and by running it: what reading gives
is what running gives, or unknown. A YAML file beside a program is the same configuration, saved.

    agree.py FOLDER
"""

import pathlib
import re
import subprocess
import sys


def imported(*words):
    """The settings of a recipe by path, and the paths that it asks for or that were left out."""
    done = subprocess.run(["shardc", "import", *words], capture_output=True, text=True)
    if "[import-nothing]" in done.stderr:
        unknown = re.findall(r"set '([\w.]+)' \[import-unknown\]", done.stderr)
        return {}, set(unknown), re.findall(r"'(.*)' has no counterpart", done.stderr)
    if done.returncode != 0:
        sys.exit(f"import {' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    settings, section = {}, None
    for line in done.stdout.partition("  // Upstream's defaults")[0].splitlines():
        if opened := re.match(r"  (\w+) ?(.*) \{$", line):
            section = opened[1]
            if opened[2]:
                settings[section] = opened[2]
        elif setting := re.match(r"  (\w+) = (.*)$", line):
            settings[setting[1]] = setting[2]
        elif setting := re.match(r"    (\w+) = (.*)$", line):
            settings[f"{section}.{setting[1]}"] = setting[2]
    head = done.stdout.split("\nrecipe ")[0]
    asked = set(re.findall(r"^//   ([\w.]+): ", head, re.M))
    left = head.partition("no counterpart:\n")[2].splitlines()
    return settings, asked, left


def is_open(path, asked, left):
    """Whether reading says that it does not know: it asks for the setting, or lists a line about its section."""
    section = path.split(".")[0]
    if any("(" in line for line in left):  # what a function sets, or may have changed
        return True
    return path in asked or section in asked or any(re.search(rf"\b{section}(_vars)?\b", line) for line in left)


def main():
    folder, wrong, known, unknown = pathlib.Path(sys.argv[1]), [], 0, 0
    for program in sorted(folder.glob("*.py")):
        if program.stem == "shared_sizes":
            continue
        ran, _, _ = imported("bridge-python", "--run", program)
        forms = [("bridge-overrides", program)]
        if (saved := program.with_suffix(".yaml")).exists():
            forms.append(("bridge-yaml", saved))
        for form, source in forms:
            read, asked, left = imported(form, source)
            for path, value in read.items():
                if ran.get(path) != value:
                    wrong.append(f"{source.name}: {path} is read as {value}, and runs as {ran.get(path)}")
            for path in ran.keys() - read.keys():
                if form == "bridge-yaml" and is_default(path, ran[path]):
                    continue
                if not is_open(path, asked, left):
                    wrong.append(f"{source.name}: {path} = {ran[path]} is lost")
                unknown += 1
            known += len(read)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{known} settings agree, {unknown} are unknown without running")


def is_default(path, value):
    """Whether a setting has its default. A complete file states it, and a recipe leaves it out."""
    done = subprocess.run(["shardc", "explain", path], capture_output=True, text=True)
    default = re.search(r"^  default: (.*)$", done.stdout, re.M)
    return value == (default[1] if default else "none")


main()
