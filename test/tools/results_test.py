#!/usr/bin/env python3
"""Tests the end of a run's output with tests that pass, fail, take too long, are missing or are skipped, as ctest runs
them, and with reasons in the form of scripts and of GoogleTest.

    results_test.py CTEST
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import results  # noqa: E402

CTEST = None
SKIPPED = """<testsuite name="t" tests="4">
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
TESTS = """
add_test(good sh -c "echo well")
add_test(bad.long sh -c "seq 100; echo 1/2 Testing: good; echo the cause; exit 1")
add_test(bad.quiet false)
add_test(bad.missing no-such-program)
add_test(skip sh -c "echo no munged; exit 77")
set_tests_properties(skip PROPERTIES SKIP_RETURN_CODE 77)
"""
EXPECTED_END = """skipped: skip: no munged
3 of 5 tests failed:
    bad.long (Failed)
    bad.quiet (Failed)
    bad.missing (Unable to find executable)
"""


class ResultsTest(unittest.TestCase):
    def test_reasons(self):
        cases = list(xml.etree.ElementTree.fromstring(SKIPPED).iter("testcase"))
        self.assertEqual(results.skipped(cases), {"there is no munged": ["launch.srun"], "needs a GPU": ["gpu.one", "gpu.two"]})
        self.assertEqual(results.failed(cases), {})

    def run_of(self, tests):
        """The report after a run of ctest."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "CTestTestfile.cmake").write_text(tests)
            subprocess.run([CTEST, "--test-dir", folder, "--output-junit", "results.xml"], capture_output=True, check=False)
            return subprocess.run([sys.executable, "-B", results.__file__, folder], capture_output=True, text=True,
                                  check=True).stdout

    def test_failures(self):
        said = self.run_of(TESTS)
        self.assertTrue(said.endswith(EXPECTED_END), said)
        numbers = "\n".join(str(number) for number in range(43, 101))
        self.assertIn("==== output of bad.long (Failed), the last 60 of 102 lines\n"
                      f"{numbers}\n1/2 Testing: good\nthe cause\n==== output of bad.quiet (Failed)\n", said)
        self.assertNotIn("well", said)

    def test_success(self):
        self.assertEqual(self.run_of('add_test(good sh -c "echo well")'), "")


if __name__ == "__main__":
    CTEST = sys.argv.pop(1)
    unittest.main()
