#!/usr/bin/env python3
"""Tests that a sanitized build finds the errors that its sanitizers are for, and then ends with a failure.

    sanitizer_test.py PROBE KIND...
"""

import subprocess
import sys

REPORTS = {
    "address": "AddressSanitizer: heap-buffer-overflow",
    "undefined": "runtime error: signed integer overflow",
    "thread": "ThreadSanitizer: data race",
}


def main():
    probe, kinds = sys.argv[1], sys.argv[2:]
    for kind in ["none", *kinds]:
        done = subprocess.run([probe, kind], capture_output=True, text=True, check=False)
        report = REPORTS.get(kind, "")
        if (done.returncode != 0) != (kind != "none") or report not in done.stderr:
            sys.exit(f"{kind}: status {done.returncode}, and not '{report}' but\n{done.stdout}{done.stderr}")
        print(f"{kind}: {report or 'nothing is reported'}")


if __name__ == "__main__":
    main()
