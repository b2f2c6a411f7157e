#!/usr/bin/env python3
"""Says which tests were skipped, and why: ctest itself prints the names alone.

    skipped.py RESULTS

RESULTS is what ctest has written with --output-junit. Tests with the same reason share a line.
"""

import sys
import xml.etree.ElementTree

NAMES_MAX = 4


def reason_of(case):
    """What a skipped test has said: the last line of its output, or what follows GoogleTest's mark."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    for number, line in enumerate(lines[:-1]):
        if line.endswith(": Skipped"):
            return lines[number + 1]
    return lines[-1] if lines else "it gives no reason"


def skipped(path):
    """{reason: names of tests}, in the order of the tests."""
    reasons = {}
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            reasons.setdefault(reason_of(case), []).append(case.get("name"))
    return reasons


def main():
    for reason, names in skipped(sys.argv[1]).items():
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        print(f"skipped: {', '.join(names[:NAMES_MAX])}{more}: {reason}")


if __name__ == "__main__":
    main()
