#!/usr/bin/env python3
"""Tests the tool that rewrites expected text: correct files stay unchanged, and changed ones become correct again.

    update_checks_test.py BUILD FOLDER

FOLDER contains the tests of passes.
"""

import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import update_checks  # noqa: E402

BUILD, FOLDER = None, None


class UpdateTest(unittest.TestCase):
    maxDiff = 2000

    def updated(self, name, change):
        """Runs the tool on a test that `change` has modified. Returns the test before and after, and the tool's status
        and output."""
        text = (FOLDER / name).read_text()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            changed = change(text)
            self.assertTrue(changed != text, "nothing was changed")
            path.write_text(changed)
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
                status = update_checks.main(BUILD, path)
            return text, path.read_text(), status, said.getvalue()

    def expect_restored(self, name, change):
        text, after, status, said = self.updated(name, change)
        self.assertEqual((status, said), (0, ""))
        self.assertEqual(after.splitlines(), text.splitlines())

    def test_right_files_stay(self):
        paths = sorted(FOLDER.glob("*.plan"))
        before = [path.read_bytes() for path in paths]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(update_checks.main(BUILD, *paths), 0)
        self.assertEqual(said.getvalue(), "")
        self.assertEqual(before, [path.read_bytes() for path in paths])

    def test_words(self):
        self.expect_restored("fuse-bias.plan", lambda text: text.replace("%y = matmul %x, %w, %b", "%y = matmul %x, %w, %c"))
        self.expect_restored("partition.plan", lambda text: text.replace("all_reduce %x.part group tp", "all_reduce %part group dp"))
        self.expect_restored("schedule.plan", lambda text: text.replace("%gs = reduce_scatter %G {block = 0} channel", "%gs = reduce_scatter %G {block = 1} channel", 1))

    def test_lines_that_came(self):
        missing = re.compile(r"\n// CHECK-NEXT: %(?:mid = add|o.drop = dropout) [^\n]*")
        self.expect_restored("partition.plan", lambda text: missing.sub("", text, count=1))

    def test_lines_that_went(self):
        extra = "// CHECK-NEXT: %y.shared = view"
        self.expect_restored("partition.plan", lambda text: text.replace(extra, f"// CHECK-NEXT: %gone = cast %x : bf16[2]\n{extra}", 1))

    def test_what_it_cannot_do_is_left(self):
        for change, reason in (
            (lambda text: text.replace("CHECK-LABEL: segment joined", "CHECK-LABEL: segment gone"), "no line has the label"),
            (lambda text: text.replace("CHECK-NOT: bias_add", "CHECK-NOT: in %x").replace("CHECK: %y = matmul", "CHECK: %y = mm", 1), "CHECK-NOT"),
        ):
            _, after, status, said = self.updated("fuse-bias.plan", change)
            self.assertEqual(status, 1)
            self.assertIn(reason, said)
            self.assertEqual(after, change((FOLDER / "fuse-bias.plan").read_text()))


if __name__ == "__main__":
    BUILD, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    del sys.argv[1:]
    unittest.main()
