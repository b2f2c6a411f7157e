"""Tests the messages of comparisons with the record."""

import unittest

import copies
import record

WAS = {"a": {"sha256": "1", "sections": {"state": "2", "program": "3"}, "ops": {"view": 1}}}
LOSSES = {"a": {"fp32": [["0x1.0p+2", "0x1.0p+0"]], "bf16": [["0x1.0p+2", "0x1.0p+0"]]}}


def plan(section):
    return {"a": {"sha256": "9", "sections": {"state": section, "program": "3"}, "ops": {"view": 1}}}


class Plans(unittest.TestCase):
    def test_differences_are_named(self):
        self.assertEqual(record.compare_plans(WAS, WAS, {}), [])
        self.assertEqual(record.compare_plans(WAS, plan("4"), {}), ["a: state differs"])
        self.assertEqual(record.compare_plans(WAS, {}, {}), ["a: does not compile any more"])
        self.assertEqual(record.compare_plans({}, WAS, {}), ["a: compiles and is not recorded"])

    def test_exceptions_hold_for_what_they_say(self):
        said = {"a": {"state": {"sha256": "4", "reason": "why"}}}
        self.assertEqual(record.compare_plans(WAS, plan("4"), said), [])
        self.assertEqual(len(record.compare_plans(WAS, plan("5"), said)), 2)
        self.assertEqual(record.compare_plans(WAS, WAS, said), ["a: state is not what exceptions.json says"])
        stale = {"a": {"state": {"sha256": "2", "reason": "why"}}}
        self.assertEqual(record.compare_plans(WAS, WAS, stale), ["a: state is as recorded; take it off exceptions.json"])


class Texts(unittest.TestCase):
    TEXT = 'shardc.plan 2 placed "a" hash 1f\n// a comment\nloc 0 "a.recipe" 1 2\n    %y = gelu %x : f32[8] loc 0\nsource recipe "a.recipe" {\n}\n'

    def digest(self, was="", now="", kept=1):
        return record.digest(self.TEXT.replace(was, now), kept)

    def test_comments_and_places_in_recipes_do_not_count(self):
        for was, now in (("a comment", "another"), ('a.recipe" 1 2', 'b.recipe" 3 4'), ("] loc 0", "] loc 1"), ("hash 1f", "hash 2f"), ("{\n}", "{ }")):
            self.assertEqual(self.digest(), self.digest(was, now), was)

    def test_anything_else_counts(self):
        self.assertNotEqual(self.digest(), self.digest("gelu", "silu"))
        self.assertNotEqual(self.digest(), self.digest("placed", "logical"))
        self.assertNotEqual(self.digest(), self.digest(kept=2))


class Losses(unittest.TestCase):
    def test_bits_count(self):
        other = {"a": {**LOSSES["a"], "fp32": [["0x1.0000000000001p+2", "0x1.0p+0"]]}}
        self.assertEqual(copies.compare(LOSSES, LOSSES, {"a"}, bitwise=True), [])
        self.assertEqual(len(copies.compare(LOSSES, other, {"a"}, bitwise=True)), 1)
        self.assertEqual(copies.compare(LOSSES, other, {"a"}, bitwise=False), [])
        far = {"a": {**LOSSES["a"], "bf16": [["0x1.1p+2", "0x1.0p+0"]]}}
        self.assertEqual(len(copies.compare(LOSSES, far, {"a"}, bitwise=False)), 1)
        self.assertEqual(copies.compare(LOSSES, {}, set(), bitwise=True), ["a: does not compile any more"])
        self.assertEqual(copies.compare({}, {}, {"a"}, bitwise=True), ["a: is not recorded"])
        self.assertEqual(copies.compare(LOSSES, {}, {"a"}, bitwise=True), [])

    def test_some_have_each_pair_of_features(self):
        text = "shardc.plan 2 placed \"a\"\n// strategy   {}\nneeds {{}}\njob {{}}\nmesh {{ dp = {} }}\n"
        heads = {f"{family}/{strategy}_{ranks}.recipe": text.format(strategy, ranks)
                 for family in "ab" for strategy in ("optim", "no_shard") for ranks in (1, 2)}
        found = copies.some(heads)
        pairs = {(name[0], precision) for name, precisions in found.items() for precision in precisions}
        self.assertEqual(pairs, {("a", "fp32"), ("a", "bf16"), ("b", "fp32"), ("b", "bf16")})
        self.assertLess(sum(map(len, found.values())), 2 * len(heads))


if __name__ == "__main__":
    unittest.main()
