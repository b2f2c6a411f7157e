#!/usr/bin/env python3
"""Tests that exactly one test of ctest runs each file that lit finds, and that each of these tests runs a file.

    lit_test.py CTEST BUILD
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

CTEST = BUILD = None


def lit_tests():
    """{name of a test of ctest: its command}, for tests that run lit."""
    shown = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True)
    tests = json.loads(shown.stdout)["tests"]
    return {test["name"]: test["command"] for test in tests if test["name"].startswith("lit.")}


class LitTest(unittest.TestCase):
    def test_each_file_is_in_one_test(self):
        tests = lit_tests()
        command = [word for word in next(iter(tests.values())) if not word.startswith("--filter=")]
        shown = subprocess.run([*command, "--show-tests"], capture_output=True, text=True, check=True).stdout
        files = [line.strip() for line in shown.splitlines() if " :: " in line]
        self.assertGreater(len(files), 200)
        filters = {name: word.split("=", 1)[1] for name, command in tests.items() for word in command if word.startswith("--filter=")}
        self.assertEqual(filters.keys(), tests.keys())
        found = {file: [name for name, regex in filters.items() if re.search(regex, file)] for file in files}
        self.assertEqual({file: names for file, names in found.items() if len(names) != 1}, {})
        self.assertEqual(filters.keys() - {name for names in found.values() for name in names}, set())

    def test_targets_are_all_programs_that_run(self):
        """`./dev test -R '^lit[.]'` builds what it runs: programs named in a test, or quoted in a script beside it."""
        listed = dict(line.split(" ", 1) for line in (pathlib.Path(BUILD) / "test_targets").read_text().splitlines() if line)
        programs = {program.name for program in (pathlib.Path(BUILD) / "bin").iterdir()}
        root = pathlib.Path(__file__).resolve().parents[1]
        used = set()
        for folder in {re.match(r"lit[.](\w+)", name)[1] for name in lit_tests()}:
            for path in (root / folder).rglob("*"):
                text = path.read_text(errors="ignore") if path.suffix in (".test", ".plan", ".recipe", ".py") else ""
                runs = "\n".join(re.findall(r"RUN: (.*)", text))
                used |= programs & set(re.findall(r"[\w-]+", runs) if path.suffix != ".py" else re.findall(r"""["']([\w-]+)["']""", text))
        self.assertLessEqual(used, set(listed["lit"].split()), "add them to shardc_test_targets(lit ...)")


if __name__ == "__main__":
    CTEST, BUILD = sys.argv[1:3]
    del sys.argv[1:3]
    unittest.main()
