#!/usr/bin/env python3
"""Tests that an op without its rows in Ops.def, or with wrong rows, does not compile, and that the error names the op.

    op_rows_test.py ROOT COMPILER [OPTION...]

Each case adds an op to a copy of the table and compiles the files that read its rows, without generating code.
"""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = COMPILER = OPTIONS = None
OP = 'OP(Twist, "twist", "x by?", "y", Pure, "y = x, turned around")'
FACTS = "FACTS(Twist, moves(), All, None, None, Computes, Never)"
FACTORS = 'FACTORS(Twist, "r c, c -> r c")'
TYPES = 'TYPES(Twist, "data, i32/1 -> ~x")'
OWN = 'OWN_ROWS(Twist, "rows are turned among those of the rank")'


SOURCES = ("OpInfo.cpp", "Factors.cpp", "OpTypes.cpp")  # read the rows; compiled in one call, which reads headers once


def errors(rows):
    """The compiler's messages about these files of runtime/plan if the op table also has these rows."""
    with open(os.path.join(ROOT, "runtime/plan/Ops.def"), encoding="utf-8") as file:
        table = file.read()
    head, tail = table.split("\n#undef OP\n")
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "runtime/plan"))
        with open(os.path.join(folder, "runtime/plan/Ops.def"), "w", encoding="utf-8") as file:
            file.write("\n".join([head, *rows, "#undef OP", tail]))
        all_of_them = os.path.join(folder, "all.cpp")
        with open(all_of_them, "w", encoding="utf-8") as file:
            for number, source in enumerate(SOURCES):  # two of them have tables of the same name
                file.write(f'#define kTable kTable{number}\n#include "{ROOT}/runtime/plan/{source}"\n#undef kTable\n')
        command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{ROOT}", *OPTIONS, all_of_them]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""


def named(name, rows):
    """The same rows for another op."""
    return [row.replace("Twist", name).replace("twist", name.lower()) for row in rows]


class OpRowsTest(unittest.TestCase):
    def test_complete_rows_compile(self):
        needs_all = FACTORS.replace("r c, c", "r! c, c")
        self.assertEqual(errors([OP, FACTS, FACTORS, TYPES, *named("Own", [OP, FACTS, needs_all, TYPES, OWN])]), "")

    def test_wrong_rows_do_not(self):
        """Each wrong row must give an error that names its op."""
        rows, wanted = [], []

        def add(message, own):
            name = f"Twist{len(wanted)}"
            rows.extend(named(name, own))
            wanted.append(message.format(name))

        for row, message in ((FACTORS, "op {} has one FACTORS row"), (TYPES, "op {} has one TYPES row")):
            add(message, [each for each in (OP, FACTS, FACTORS, TYPES) if each != row])
        add("op {} has an OWN_ROWS row, so it needs all rows", [OP, FACTS, FACTORS, TYPES, OWN])
        for row, message, texts in (
                (FACTORS, "the FACTORS row of op {} is malformed",
                 ("r c -> r c", "r c, c -> r c, r", "r c, c -> r d", "r c, c r c", "(r c, c -> r c", "r c, =c -> r c")),
                (TYPES, "the TYPES row of op {}",
                 ("data -> ~x", "data, i32 -> data, f32", "data, i32 -> ~z", "data, i33 -> ~x", "data, i32/5 -> ~x", "data, i32"))):
            for text in texts:
                wrong = row[:row.index(",")] + f', "{text}")'
                add(message, [wrong if each == row else each for each in (OP, FACTS, FACTORS, TYPES)])
        add("op {} has one FACTS row", [OP, FACTORS, TYPES])
        for text in ("eps epsilon", "eps @norm", "@norms", "block~!"):
            add("the ATTRS row of op {}", [OP, FACTS, FACTORS, TYPES, f'ATTRS(Twist, "{text}")'])
        said = errors(rows)
        self.assertEqual([each for each in wanted if each not in said], [])


if __name__ == "__main__":
    ROOT, COMPILER, *OPTIONS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
