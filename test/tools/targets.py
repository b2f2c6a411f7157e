#!/usr/bin/env python3
"""Prints the targets that the tests selected by a regular expression need, one per line; nothing if they need all
targets.

    targets.py BUILD REGEX

BUILD/test_targets lists groups of tests with known targets. Each line has the first part of the tests' names and the
targets. An expression selects groups if each of its alternatives begins with `^`, a group and a dot, as in '^passes[.]'
and '^(passes|lit)[.]'.
"""

import pathlib
import re
import sys


def alternatives(regex):
    """The alternatives of an expression, outside of parentheses."""
    parts, depth, is_class, escaped = [""], 0, False, False
    for letter in regex:
        if escaped or is_class:
            is_class = is_class and (escaped or letter != "]")
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == "[":
            is_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def groups(regex):
    """The groups to which all selected tests belong; None if the expression does not tell."""
    found = set()
    for part in alternatives(regex):
        whole = re.match(r"\^\(([^()\\\[\]]*)\)(.*)", part)
        if whole:
            names = ["^" + word + whole[2] for word in whole[1].split("|")]
        elif re.match(r"\^\(.*\)$", part):
            names = ["^" + word for word in alternatives(part[2:-1])]
        else:
            names = [part]
        for name in names:
            group = re.match(r"\^([A-Za-z0-9_-]+)(?:\\\.|\[\.\])(?![?*{])", name)
            if not group:
                return None
            found.add(group[1])
    return found


def read_table(build):
    lines = (pathlib.Path(build) / "test_targets").read_text().splitlines()
    table = {}
    for group, *targets in (line.split() for line in lines if line):
        table.setdefault(group, []).extend(targets)
    return table


def targets(table, regex):
    """The targets; empty if all targets must be built."""
    named = groups(regex)
    if not named or not named <= table.keys():
        return []
    return sorted({target for group in named for target in table[group]})


if __name__ == "__main__":
    print("\n".join(targets(read_table(sys.argv[1]), sys.argv[2])), end="")
