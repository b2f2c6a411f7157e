#!/usr/bin/env python3
"""Prints every subcommand and option of the programs, one a line, as their help lists them.

    command_line.py PROGRAM...

The committed list stands in command-line.txt. Adding a line there is the whole change for a new option; changing or
removing one breaks users' scripts and takes a decision record.
"""

import re
import subprocess
import sys


def help_of(words):
    done = subprocess.run([*words, "--help"], capture_output=True, text=True)
    if done.returncode != 0 or done.stderr:
        sys.exit(f"{' '.join(words)} --help: status {done.returncode}: {done.stderr}")
    return done.stdout


def walk(words):
    part = None
    for line in help_of(words).splitlines():
        if line in ("Positionals:", "Options:", "Subcommands:"):
            part = line
        entry = re.match(r"  (\S.*?)(?:  +|$)", line)
        if not entry or part is None:
            continue
        what = entry.group(1)
        if part == "Subcommands:":
            walk([*words, what])
        elif not what.startswith("-h,"):
            # Which backends there are depends on the build, and some defaults on the machine.
            what = re.sub(r"(--backend TEXT).*", r"\1", what)
            print(" ".join(words), re.sub(r"( \S+)=\S+$", r"\1", what))


for program in sys.argv[1:]:
    print(program)
    walk([program])
