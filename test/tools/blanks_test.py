#!/usr/bin/env python3
"""Tests that a path with blanks stays one word of a RUN line, with any quotes."""

import os
import re
import shlex
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import blanks  # noqa: E402


def apply(script, substitutions, recursion_limit=None):
    for name, value in substitutions:
        script = [re.sub(name, value, line) for line in script]
    return script


class BlanksTest(unittest.TestCase):
    def words(self, line):
        lines = blanks.keep_paths_whole(apply)([line], [("%t", "/a b/c"), ("%n", "no path")], recursion_limit=None)
        return shlex.split(lines[0])

    def test_bare(self):
        self.assertEqual(self.words("cp %t %t/d"), ["cp", "/a b/c", "/a b/c/d"])

    def test_in_quotes(self):
        self.assertEqual(self.words("""run "%t/d e" '%t' --set='save="%t"'"""),
                         ["run", "/a b/c/d e", "/a b/c", '--set=save="/a b/c"'])

    def test_behind_quotes(self):
        self.assertEqual(self.words("""run 'x'%t "it's"%t \\"%t"""), ["run", "x/a b/c", "it's/a b/c", '"/a b/c'])

    def test_other_values(self):
        self.assertEqual(self.words("say %n"), ["say", "no", "path"])


if __name__ == "__main__":
    unittest.main()
