#!/usr/bin/env python3
"""Tests that a wrong row of Ops.def does not compile, and that the error names op and fault.

    op_rows_test.py ROOT COMPILER [OPTION...]

Each case adds an op to a copy of the table and compiles the file that reads its rows, without generating code.
"""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = COMPILER = OPTIONS = None
VALUES = "x: data[r c], by?: i32/1[c] -> y: ~x[r c]"
END = "\n// Ops with kernels of their own"


def plain(name, values=VALUES, attrs="", facts="PURE"):
    return f'OP({name}, "{name.lower()}", "{values}", "{attrs}", {facts}, "y = x, turned around")'


def fused(name, steps, values="a b w -> y rstd", facts=""):
    return f'FUSED({name}, "{name.lower()}", "{values}", "{steps}", {facts}, "the norm of a sum")'


def errors(rows):
    """The compiler's messages if the op table also has these rows."""
    with open(os.path.join(ROOT, "runtime/plan/Ops.def"), encoding="utf-8") as file:
        head, tail = file.read().split(END)
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "runtime/plan"))
        with open(os.path.join(folder, "runtime/plan/Ops.def"), "w", encoding="utf-8") as file:
            file.write("\n".join([head, *rows]) + END + tail)
        command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{ROOT}", *OPTIONS,
                   os.path.join(ROOT, "runtime/plan/OpRows.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""


class OpRowsTest(unittest.TestCase):
    def test_sound_rows_compile(self):
        """A fused op is one row: all else follows from its steps."""
        own = plain("Own", VALUES.replace("[r c], by", "[r! c], by"), facts='PURE OWN_ROWS("rows are of the rank")')
        steps = "s = add a b; y rstd = rmsnorm s w"
        self.assertEqual(errors([plain("Twist"), own, fused("Both", steps)]), "")

    def test_wrong_rows_do_not(self):
        """Each wrong row must give an error that names its op and its fault."""
        rows, wanted = [], []

        def add(fault, row, *arguments, **more):
            rows.append(row(f"Twist{len(wanted)}", *arguments, **more))
            wanted.append(f"OpKind::Twist{len(wanted)}, shardc::plan::OpFault::{fault}>")

        for fault, values in (("NoArrow", "x: data[r c], y: data[r c]"), ("Unclosed", "x: data[(r c] -> y: data[r c]"),
                              ("Unclosed", "x: data r c -> y: data[r c]"), ("UnknownFactor", "x: data[r c] -> y: data[r d]"),
                              ("MarkOfOperand", "x: data[=r c] -> y: data[r c]"), ("Word", "x: data[r c] -> y: data[r &c]"),
                              ("Type", "x: i33[r c] -> y: data[r c]"), ("Type", "x: data/5[r c] -> y: data[r c]"),
                              ("UnknownName", "x: data[r c] -> y: ~z[r c]"), ("List", "x*: data[r c] -> y: data[r c]"),
                              ("Uncounted", "x: data[r? c] -> y: data[r? c]"), ("Transposed", "x: data[trans_a:r] -> y: data[r]"),
                              ("UnknownAttribute", "x: data[trans_c:r c] -> y: data[r c]"),
                              ("TooMany", "x: data[a b c d e] -> y: data[a b c d e]")):
            add(fault, plain, values)
        for text in ("eps epsilon", "eps @norm", "@norms"):
            add("UnknownAttribute", plain, attrs=text)
        for facts in ('PURE OWN_ROWS("of the rank")', "PURE RECOMPUTE(FusedNorm)", "PURE WORK(transfer(0))", "TRAFFIC(Nothing)"):
            add("Facts", plain, facts=facts)
        add("Facts", plain, attrs="block~!")
        add("UnknownName", plain, facts='PURE LINEAR(Together, "z")')
        for steps in ("s = add a b; y rstd = rmsnorms s w", "s = add a b; y rstd = rmsnorm t w", "s = add a b; y = add s w",
                      "s = add{eps} a b; y rstd = rmsnorm s w", "s: f16 = add a b; y rstd = rmsnorm s w"):
            add("Steps", fused, steps)
        add("DimsOfSteps", fused, "s = swiglu a; t = add a s; y rstd = rmsnorm t w")
        said = errors(rows)
        self.assertEqual([each for each in wanted if each not in said], [])


if __name__ == "__main__":
    ROOT, COMPILER, *OPTIONS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
