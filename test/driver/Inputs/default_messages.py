#!/usr/bin/env python3
"""Tests what `check` prints without options for every third recipe below FOLDER, and for those that QUIET names. With
SHARDC_LONG=1, it tests all recipes. Overlays are left out, because they need the recipe of a model.

default_messages.py SHARDC FOLDER [QUIET...]

A recipe has no errors, prints no remark, and at most one line that counts them; those that QUIET names print nothing at
all. Warnings with their source lines and notes may come before the line.
"""

import os
import re
import shlex
import subprocess
import sys

COUNT = r"\d+ [a-zA-Z ]+(?: \('cluster.gpu' is not set\))?"
COUNTS = r"{}: (" + COUNT + ", )*" + COUNT + r" \(list them: shardc explain {} adjustments\)"


def judge(shardc, path, quiet):
    done = subprocess.run([shardc, "check", path], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stdout:
        return f"status {done.returncode}: {done.stdout}{done.stderr}"
    if quiet:
        return done.stderr
    lines = [line for line in done.stderr.splitlines(keepends=True) if "a run sets the environment's" not in line]
    counts = re.compile(COUNTS.format(re.escape(path), re.escape(shlex.quote(path))))
    if lines and counts.fullmatch(lines[-1].rstrip("\n")):
        lines.pop()
    done.stderr = "".join(lines)
    first = done.stderr.partition("\n")[0]
    if first and "warning:" not in first:
        return f"neither counts nor a warning: {first}"
    return "a remark in full" if "remark:" in done.stderr or "list them:" in done.stderr else ""


def main():
    shardc, folder, quiet = sys.argv[1], sys.argv[2], sys.argv[3:]
    paths = sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names
                   if name.endswith(".recipe") and os.path.basename(root) != "overlays")
    silent = [os.path.join(folder, name) for name in quiet]
    if os.environ.get("SHARDC_LONG") != "1":
        paths = silent + [path for path in paths[::3] if path not in silent]
    bad = 0
    for path in paths:
        problem = judge(shardc, path, path in silent)
        if problem:
            bad += 1
            print(f"{path}: {problem}")
    print(f"{len(paths)} recipes, {bad} with more than one line")
    sys.exit(1 if bad or not paths else 0)


if __name__ == "__main__":
    main()
