#!/usr/bin/env python3
"""Fails for a row of a table that no test names: diagnostics, reports, rules of recipes and of plans, options, ops, passes.

    coverage.py ROOT

A test names a row by its id as users see it, or by its enumerator (`OpKind::MatMul`). Options that only take part in
rules are many; test/unit/config loops over all of them (types, defaults, documentation, random recipes), so only those
that a plan depends on have to be named. Rows that no test can name stand in coverage_exempt.json, each with the reason;
the list only shrinks: a row that a test names, or that is gone, has to leave it.
"""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from option_rows import option_rows  # noqa: E402

TESTS = ("test", "recipes")
SUFFIXES = (".cpp", ".h", ".recipe", ".plan", ".test", ".py", ".cu", ".def")
# Tests that name every row because they walk the tables, or list what this one asks for.
UNCOUNTED = ("test/tidy/", "test/fuzz/")


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def without_comments(text):
    return re.sub(r"^\s*//[^\n]*", "", text, flags=re.MULTILINE)


def rows(root, path, macro, lead=""):
    """(enumerator, id) of each row of a table: MACRO(lead Enumerator, "id", ...)."""
    row = re.compile(rf'^{macro}\({lead}\s*(\w+),\s*"([^"]+)"', re.MULTILINE)
    return row.findall(without_comments(read(root, path)))


def rules(root):
    """(enumerator, id) of each rule: the id is the enumerator in kebab case."""
    row = re.compile(r"^(?:DERIVE|LEFT_OPEN|ADJUST|ERROR|UNSUPPORTED|WARNING|REMARK)\((\w+)", re.MULTILINE)
    names = row.findall(without_comments(read(root, "compiler/config/Rules.def")))
    return [(name, re.sub(r"(?<=[A-Z])([A-Z][a-z])|(?<=[a-z0-9])([A-Z])", r"-\g<0>", name).lower()) for name in names]


def quantising_forms(root):
    """Names of FORM rows, which macros write; each has a CUDA kernel."""
    return [name for _, name in rows(root, "kernels/Kernels.def", "CUDA_KERNEL") if "." in name]


def word(name):
    return rf"(?<![\w-]){re.escape(name)}(?![\w-])"


def tables(root):
    """Yields (kind, {id: {word: pattern}}): for the id of each row, the patterns by which a test may name the row, each
    under a word that it contains."""
    def by_id(kind, found, scope):
        return kind, {name: {name: word(name), f"{scope}::{enumerator}": rf"{scope}::{enumerator}\b"}
                      for enumerator, name in found}

    yield by_id("diagnostic", rows(root, "compiler/diag/Diagnostics.def", "DIAG", r"\w+,"), "diag")
    # Ids of reports are words of the language too, so a test names them as they are printed, or as a string.
    yield "report", {name: {name: rf"\\?\[{re.escape(name)}\\?\]|[\"']{re.escape(name)}[\"']",
                            f"report::{enumerator}": rf"report::{enumerator}\b"}
                     for enumerator, name in rows(root, "runtime/base/Reports.def", "REPORT", r"\w+,")}
    yield by_id("rule", rules(root), "RuleId")
    yield by_id("plan rule", rows(root, "runtime/verify/VerifyRules.def", "RULE"), "Rule")
    yield by_id("op", rows(root, "runtime/plan/Ops.def", "(?:OP|FUSED)"), "OpKind")
    yield "quantising form", {name: {name: word(name)} for name in quantising_forms(root)}
    yield "pass", {flag: {f"--{flag}": rf"--{flag}(?![\w-])"} for _, flag in rows(root, "compiler/passes/Passes.def", "PASS")}
    # `section.option`, or the option's name in its section's block.
    options = {path: {path.split(".")[-1]: word(path.split(".")[-1]), f"Opt::{name}": rf"Opt::{name}\b"}
               for name, path, status in option_rows(root) if status == "Executed"}
    yield "option", options


def test_text(root):
    parts = []
    for top in TESTS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), root)
                if name.endswith(SUFFIXES) and not path.startswith(UNCOUNTED):
                    parts.append(read(root, path))
    return "\n".join(parts)


def is_named(text, patterns):
    """Whether one of the patterns matches where its words occur."""
    for words, pattern in patterns.items():
        found, at = re.compile(pattern), text.find(words)
        while at >= 0:
            if found.search(text, max(0, at - 2), at + len(words) + 2):
                return True
            at = text.find(words, at + 1)
    return False


def main():
    root = sys.argv[1]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "coverage_exempt.json"), encoding="utf-8") as file:
        exempt = json.load(file)
    text = test_text(root)
    findings = []
    for kind, names in tables(root):
        if not names:
            findings.append(f"no {kind} was found in its table; its form has changed")
        excused = exempt.get(kind, {})
        for name, patterns in names.items():
            named = is_named(text, patterns)
            if not named and name not in excused:
                findings.append(f"no test names {kind} '{name}'")
            if named and name in excused:
                findings.append(f"a test names {kind} '{name}': take it off coverage_exempt.json")
        findings += [f"coverage_exempt.json names {kind} '{name}', which there is none of"
                     for name in excused if name not in names]
        print(f"{kind}: {len(names)} rows, {len(excused)} exempt")
    for finding in findings:
        print(finding)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
