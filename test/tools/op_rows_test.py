#!/usr/bin/env python3
"""Tests that an op without its rows in Ops.def, or with rows that do not fit, does not build, and that the error names it.

    op_rows_test.py ROOT COMPILER [OPTION...]

Each case adds an op to a copy of the table and compiles the files that read its rows, without making code of them.
"""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = COMPILER = OPTIONS = None
OP = 'OP(Twist, "twist", "x by?", "y", Pure, "y = x, turned around")'
FACTS = "FACTS(Twist, moves(), All, None, None, Refused, Computes, Never)"
FACTORS = 'FACTORS(Twist, "r c, c -> r c")'
TYPES = 'TYPES(Twist, "data, i32/1 -> ~x")'


def errors(source, rows):
    """What the compiler says of a file of runtime/plan where the op table has these rows, too."""
    with open(os.path.join(ROOT, "runtime/plan/Ops.def"), encoding="utf-8") as file:
        table = file.read()
    head, tail = table.split("\n#undef OP\n")
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "runtime/plan"))
        with open(os.path.join(folder, "runtime/plan/Ops.def"), "w", encoding="utf-8") as file:
            file.write("\n".join([head, *rows, "#undef OP", tail]))
        command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{ROOT}", *OPTIONS, f"{ROOT}/runtime/plan/{source}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""


class OpRowsTest(unittest.TestCase):
    def test_complete_rows_compile(self):
        for source in ("OpInfo.cpp", "Factors.cpp", "OpTypes.cpp"):
            self.assertEqual(errors(source, [OP, FACTS, FACTORS, TYPES]), "")

    def test_each_row_is_needed(self):
        for source, row, what in (("OpInfo.cpp", FACTS, "op Twist has one FACTS row"),
                                  ("Factors.cpp", FACTORS, "op Twist has one FACTORS row"),
                                  ("OpTypes.cpp", TYPES, "op Twist has one TYPES row")):
            rows = [each for each in (OP, FACTS, FACTORS, TYPES) if each != row]
            self.assertIn(what, errors(source, rows))

    def test_rows_fit_the_op(self):
        self.expect_each("Factors.cpp", FACTORS, "the FACTORS row of op {} is malformed",
                         ("r c -> r c", "r c, c -> r c, r", "r c, c -> r d", "r c, c r c", "(r c, c -> r c", "r c, =c -> r c"))
        self.expect_each("OpTypes.cpp", TYPES, "the TYPES row of op {}",
                         ("data -> ~x", "data, i32 -> data, f32", "data, i32 -> ~z", "data, i33 -> ~x", "data, i32/5 -> ~x", "data, i32"))

    def expect_each(self, source, row, message, texts):
        """An error for each of the texts, which stand in the row of an op each."""
        rows, wanted = [], []
        for number, text in enumerate(texts):
            name = f"Twist{number}"
            wrong = row[:row.index(",")] + f', "{text}")'
            rows += [each.replace("Twist", name).replace("twist", name) for each in (OP, FACTS, FACTORS, TYPES) if each != row]
            rows.append(wrong.replace("Twist", name))
            wanted.append(message.format(name))
        said = errors(source, rows)
        self.assertEqual([each for each in wanted if each not in said], [])


if __name__ == "__main__":
    ROOT, COMPILER, *OPTIONS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
