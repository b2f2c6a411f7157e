#!/usr/bin/env python3
"""Tests that the targets for a selection of tests include everything that these tests run.

    targets_test.py CTEST BUILD SOURCE
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import targets  # noqa: E402

CTEST = BUILD = SOURCE = None
TABLE = {"passes": ["unit_passes"], "lit": ["shardc", "shardc-opt"]}


class TargetsTest(unittest.TestCase):
    def test_expressions(self):
        for regex, expected in {
                r"^passes\.": ["unit_passes"], "^passes[.]Layout": ["unit_passes"], "^lit[.](passes|lower)$": ["shardc", "shardc-opt"],
                "^(passes|lit)[.]": ["shardc", "shardc-opt", "unit_passes"], r"^passes\.|^lit[.]passes": ["shardc", "shardc-opt", "unit_passes"],
                r"^(passes[.]|lit\.passes)": ["shardc", "shardc-opt", "unit_passes"]}.items():
            self.assertEqual(targets.targets(TABLE, regex), expected, regex)
        for regex in ("passes", "^passes", "passes[.]", "^passes.", "^passes[.]?", r"^passes\.*x", "^passes[.]|lit", "^plan[.]",
                      "^passes[.]|^plan[.]", "^(passes[.]|docs)", "^(passes|)[.]", "", "^(", "^(a|(b))[.]"):
            self.assertEqual(targets.targets(TABLE, regex), [], regex)

    def test_programs(self):
        """Programs that a test of a known group runs must be among the group's targets."""
        table = targets.read_table(BUILD)
        self.assertIn("passes", table)
        shown = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True)
        programs = pathlib.Path(BUILD) / "bin"
        seen = set()
        for test in json.loads(shown.stdout)["tests"]:
            group = test["name"].partition(".")[0]
            if group not in table:
                continue
            seen.add(group)
            used = {pathlib.Path(word).name for word in test.get("command", []) if pathlib.Path(word).parent == programs}
            self.assertLessEqual(used, set(table[group]), test["name"])
        self.assertLessEqual({"lit", "fuzz", "passes"}, seen)

    def test_programs_of_lit(self):
        known = set(targets.read_table(BUILD)["lit"])
        built = {path.name for path in (pathlib.Path(BUILD) / "bin").iterdir()}
        for path in sorted(pathlib.Path(SOURCE, "test").rglob("*")):
            if path.suffix in (".test", ".recipe", ".plan"):
                for line in re.findall(r"RUN:(.*)", path.read_text(errors="replace")):
                    self.assertLessEqual(set(re.findall(r"[\w-]+", line)) & built, known, f"{path}: {line}")


if __name__ == "__main__":
    CTEST, BUILD, SOURCE = sys.argv[1:4]
    del sys.argv[1:4]
    unittest.main()
