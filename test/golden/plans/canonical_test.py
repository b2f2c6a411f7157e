"""Tests that changes of a plan's text change the hashes of the right sections, and that renaming changes none."""

import pathlib
import re
import unittest

import canonical

PLAN = (pathlib.Path(__file__).resolve().parent / "example.plan").read_text(encoding="utf-8")


def hashes(text):
    return canonical.hashes(canonical.sections_of(canonical.read(text), {}))


def changed(text):
    """The sections that differ from those of the plan."""
    whole, sections = hashes(text)
    before, was = hashes(PLAN)
    found = {name for name in {**was, **sections} if was.get(name) != sections.get(name)}
    assert (whole != before) == bool(found)
    return found


def edited(old, new, count=1):
    assert PLAN.count(old) >= 1, old
    return PLAN.replace(old, new, count)


class Changes(unittest.TestCase):
    def check(self, old, new, *sections):
        self.assertEqual(changed(edited(old, new)), set(sections))

    def test_op_order(self):
        lines = PLAN.splitlines()
        at = next(i for i, line in enumerate(lines) if "%a = " in line)
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
        self.assertEqual(changed("\n".join(lines)), {"segment 0"})

    def test_dropped_op(self):
        self.assertEqual(changed(re.sub(r"    %b = .*\n| after %b", "", PLAN)), {"segment 0", "segment 0 labels"})

    def test_stream(self):
        self.check("group all stream reduce", "group all stream gather", "segment 0")

    def test_wait(self):
        self.check("after %a ", "after %b ", "segment 0")

    def test_offset(self):
        self.check("work 512", "work 768", "segment 0")

    def test_moving_offset(self):
        self.check("sym 0 + 64*all", "sym 0 + 128*all", "segment 0", "arenas")

    def test_dtype(self):
        self.check("%a = fill : f32[16]", "%a = fill : bf16[16]", "segment 0")

    def test_group(self):
        self.check("channel reduce group all", "channel reduce group one", "segment 0")

    def test_channel(self):
        self.check("channel reduce after", "channel gather on reduce after", "segment 0")

    def test_attribute(self):
        self.check("{value = 2.0}", "{value = 3.0}", "segment 0")

    def test_arena(self):
        self.check("work = 4096", "work = 8192", "arenas")

    def test_state(self):
        self.check("in state for params at 0", "in state for params at 128", "state", "arenas")

    def test_droppable(self):
        self.check("out @free = %s", "out @free = %s droppable", "segment 0")

    def test_program(self):
        self.check("steps 3", "steps 4", "program")

    def test_parameter(self):
        self.check("init ones", "init zeros", "parameters")

    def test_kind(self):
        self.check("first_moment of b", "second_moment of b", "state")

    def test_purpose(self):
        self.check("f32[16] activations", "f32[16] comm", "segment 0 labels")


class Names(unittest.TestCase):
    def test_names_of_values(self):
        self.assertEqual(changed(re.sub(r"%(\w+)", r"%other.\1", PLAN)), set())

    def test_names_of_cells_segments_roles_groups(self):
        for name in ("free", "w.b", "m.b", "main", "everything", "all"):
            self.assertEqual(changed(re.sub(rf"\b{name}\b", f'"x {name}"', PLAN)), set(), name)

    def test_formats(self):
        """Format 1 expresses by names what format 2 expresses by kinds, and writes for each collective what format 2
        writes for its channel."""
        before = re.sub(r" (weight|first_moment) of b :", " :", PLAN).replace("shardc.plan 2", "shardc.plan 1")
        before = before.replace("data all\n", "").replace(" over all", "").replace("*all", "*dp")
        before = before.replace("{coef = 16} group all", "{coef_dp = 16}")
        before = re.sub(r"\n(stream|channel) [^\n]*", "", before)
        before = re.sub(r" channel (\w+)", r" group all channel \1 on \1", before)
        self.assertEqual(changed(before), set())

    def test_names_of_streams_and_channels(self):
        for name in ("gather", "reduce"):
            self.assertEqual(changed(re.sub(rf"\b(stream|channel) {name}\b", rf'\1 "x {name}"', PLAN)), set(), name)


if __name__ == "__main__":
    unittest.main()
