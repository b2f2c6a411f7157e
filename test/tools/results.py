#!/usr/bin/env python3
"""Prints the end of ctest's output: the last output of failed tests, the reasons of skipped tests, and which tests
failed.

    results.py BUILD

BUILD must contain results.xml, which ctest writes with --output-junit. Skipped tests with the same reason share a line.
"""

import pathlib
import sys
import xml.etree.ElementTree

NAMES_MAX = 4
LINES_MAX = 60


def is_skipped(case):
    """Whether a test was skipped. One whose program is missing does not run either, but counts as failed."""
    mark = case.find("skipped")
    return mark is not None and mark.get("message", "").startswith(("SKIP_", "Disabled"))


def reason_of(case):
    """The reason that a skipped test gave: the last line of its output, or the text after GoogleTest's mark."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    for number, line in enumerate(lines[:-1]):
        if line.endswith(": Skipped"):
            return lines[number + 1]
    return lines[-1] if lines else "it gives no reason"


def skipped(cases):
    """{reason: names of tests}, in the order of the tests."""
    reasons = {}
    for case in cases:
        if is_skipped(case):
            reasons.setdefault(reason_of(case), []).append(case.get("name"))
    return reasons


def failed(cases):
    """{name of a failed test: how it failed, in ctest's words, and its output}."""
    found = {}
    for case in cases:
        mark = case.find("failure")
        if mark is None and not is_skipped(case):
            mark = case.find("skipped")
        if mark is not None:
            found[case.get("name")] = mark.get("message") or "Failed", case.findtext("system-out") or ""
    return found


def report(cases):
    """All lines of the report."""
    failures = failed(cases)
    for name, (how, text) in failures.items():
        lines = text.splitlines()
        part = f", the last {LINES_MAX} of {len(lines)} lines" if len(lines) > LINES_MAX else ""
        yield f"==== output of {name} ({how}){part}"
        yield from lines[-LINES_MAX:]
    for reason, names in skipped(cases).items():
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        yield f"skipped: {', '.join(names[:NAMES_MAX])}{more}: {reason}"
    if failures:
        yield f"{len(failures)} of {len(cases)} tests failed:"
        for name, (how, _) in failures.items():
            yield f"    {name} ({how})"


def main():
    build = pathlib.Path(sys.argv[1])
    cases = list(xml.etree.ElementTree.parse(build / "results.xml").getroot().iter("testcase"))
    for line in report(cases):
        print(line)


if __name__ == "__main__":
    main()
