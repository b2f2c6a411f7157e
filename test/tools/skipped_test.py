#!/usr/bin/env python3
"""Tests that a skipped test is told with its reason, in the words of scripts and of GoogleTest."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import skipped  # noqa: E402

RESULTS = """<testsuite name="t" tests="4">
<testcase name="a.runs" status="run"><system-out>fine
</system-out></testcase>
<testcase name="launch.srun" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>starting
there is no munged
</system-out></testcase>
<testcase name="gpu.one" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>[ RUN      ] gpu.one
/a/b.cpp:3: Skipped
needs a GPU

[  SKIPPED ] gpu.one (0 ms)
</system-out></testcase>
<testcase name="gpu.two" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>needs a GPU
</system-out></testcase>
</testsuite>
"""


class SkippedTest(unittest.TestCase):
    def test_reasons(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(RESULTS)
            file.flush()
            self.assertEqual(skipped.skipped(file.name),
                             {"there is no munged": ["launch.srun"], "needs a GPU": ["gpu.one", "gpu.two"]})


if __name__ == "__main__":
    unittest.main()
