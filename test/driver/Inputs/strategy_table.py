#!/usr/bin/env python3
"""Reads a strategy's row of the comparison table from its plan.

    strategy_table.py STRATEGY NO_SHARD.json PLAN.json

Both plans are of the same recipe, several microbatches a step; the first is replicated. Checks bytes of
parameters, gradients and optimizer state per rank, equal activations, and kind, number, predicate and
place of every collective; prints what was found, for FileCheck.
"""

import json
import sys

SHARDED = {
    "no_shard": set(),
    "optim": {"optimizer"},
    "optim_grads": {"optimizer", "grads"},
    "optim_grads_params": {"optimizer", "grads", "params"},
}


def fail(text):
    sys.exit(f"strategy_table.py: {text}")


class Plan:
    def __init__(self, path):
        with open(path) as file:
            self.json = json.load(file)
        (self.role,) = self.json["roles"]
        self.ranks = self.json["mesh"]["dp"]
        self.segments = {segment["name"]: segment for segment in self.role["segments"]}
        self.micro = self.segments["micro"]["ops"]
        self.microbatches = self.json["job"]["derived.num_microbatches"]
        self.units = [unit["name"] for unit in self.json["units"]]
        self.layers = [unit["name"] for unit in self.json["units"] if unit["kind"] == "layer"]

    def cell_bytes(self, *kinds):
        return sum(cell["type"]["bytes"] for cell in self.role.get("cells", []) if cell["kind"] in kinds)

    def padded_numel(self):
        return sum(block["numel"] for block in self.json["blocks"])

    def activations(self):
        values = self.segments["micro"]["values"]
        return {v["name"]: v["type"]["bytes"] for v in values if v["purpose"] == "activations"}

    def collectives(self, segment="micro"):
        return [op for op in self.segments[segment]["ops"] if "group" in op]

    def uses(self, unit, phase):
        """Indices of the ops of a unit in the forward or the backward pass."""
        return [
            i
            for i, op in enumerate(self.micro)
            if op.get("unit") == unit and "group" not in op and op["op"] not in ("view", "pack", "cast")
            and op["phase"] == phase
        ]


def check_bytes(strategy, plan, whole):
    """Bytes per rank are those of the replicated plan divided by the ranks where the strategy shards."""
    sharded = SHARDED[strategy]
    numel, ranks = plan.padded_numel(), plan.ranks
    found = {
        "params": plan.cell_bytes("weight"),
        "grads": plan.cell_bytes("gradient_shard" if "grads" in sharded else "gradient"),
        "optimizer": plan.cell_bytes("first_moment", "second_moment"),
    }
    widths = {"params": 4, "grads": 4, "optimizer": 8}
    for what, width in widths.items():
        expected = numel * width // (ranks if what in sharded else 1)
        if found[what] != expected:
            fail(f"{what}: {found[what]} bytes, expected {expected}")
        padding = (numel - whole.padded_numel()) / whole.padded_numel()
        if padding > 0.05:
            fail(f"padding takes {padding:.1%}")
        print(f"{what}: {'1/' + str(ranks) if what in sharded else 'whole'}")
    if plan.activations() != whole.activations():
        fail("activations differ from those of the replicated plan")
    print("activations: equal")


def check_collectives(strategy, plan):
    counts = {}
    for op in plan.collectives():
        key = (op["op"], op["if"], op["channel"])
        counts.setdefault(key, []).append(op["unit"])
    units = plan.units
    expected = {
        "no_shard": {("all_reduce", "last", "reduce"): units},
        "optim": {("all_gather", "first", "gather"): units, ("reduce_scatter", "last", "reduce"): units},
        "optim_grads": {("all_gather", "first", "gather"): units, ("reduce_scatter", "always", "reduce"): units},
        "optim_grads_params": {
            # A layer is gathered for its forward and again for its backward; the embedding's backward
            # reads no weight, and the head's forward and backward lie together.
            ("all_gather", "always", "gather"): units + plan.layers,
            ("reduce_scatter", "always", "reduce"): units,
        },
    }[strategy]
    for key in sorted(set(expected) | set(counts)):
        if sorted(expected.get(key, [])) != sorted(counts.get(key, [])):
            fail(f"{' '.join(key)}: found {counts.get(key)}, expected {expected.get(key)}")
        print(f"{' '.join(key)}: {len(counts[key])}")
    update = [op["op"] for op in plan.collectives("update")]
    if update != ["all_reduce"] or any(plan.collectives(s) for s in ("init", "prologue")):
        fail(f"update has {update}; one all_reduce of the norm was expected")


def check_init(strategy, plan):
    """Initialisation holds shards alone: no rank ever has more of a parameter than it keeps."""
    if "optimizer" not in SHARDED[strategy]:
        return
    largest = {b["name"]: b["shard"] * 4 for b in plan.json["blocks"]}
    for segment in ("init", "prologue") if strategy == "optim_grads_params" else ("init",):
        for value in plan.segments[segment]["values"]:
            block = value["name"].split(".", 1)[-1]
            if value["type"]["bytes"] > largest.get(block, 128):
                fail(f"{segment} holds {value['type']['bytes']} bytes in %{value['name']}")


def check_places(strategy, plan):
    """Gathers come before the uses of their weights, reductions after the last gradient of their unit."""
    for unit in plan.units:
        positions = {kind: [i for i, op in enumerate(plan.micro) if op.get("unit") == unit and op["op"] == kind]
                     for kind in ("all_gather", "reduce_scatter", "all_reduce")}
        backward = plan.uses(unit, "backward")
        reductions = positions["reduce_scatter"] + positions["all_reduce"]
        if backward and min(reductions) < max(backward):
            fail(f"unit {unit} is reduced at {reductions}, before its last gradient at {max(backward)}")
        forward = plan.uses(unit, "forward")
        gathers = positions["all_gather"]
        if gathers and gathers[0] > min(forward):
            fail(f"unit {unit} is gathered at {gathers}, after its first use at {min(forward)}")
        if strategy == "optim_grads_params" and unit in plan.layers:
            if not max(forward) < gathers[1] < min(i for i in backward if needs_weight(plan.micro[i])):
                fail(f"unit {unit} is gathered again at {gathers[1]}")
    print("places: right")


def needs_weight(op):
    return any(name.startswith("w.") for name in op["operands"])


def main():
    strategy, whole, plan = sys.argv[1], Plan(sys.argv[2]), Plan(sys.argv[3])
    check_bytes(strategy, plan, whole)
    check_collectives(strategy, plan)
    check_places(strategy, plan)
    check_init(strategy, plan)
    row = plan.role["summary"]["traffic"]
    elements = plan.padded_numel()
    n = plan.microbatches
    expected = {
        "no_shard": 2, "optim": 2, "optim_grads": n + 1,
        # embedding and head are gathered once a microbatch, layers twice
        "optim_grads_params": None,
    }[strategy]
    sent = sum(r["sent_bytes"] for r in row if r["dtype"] == "f32")
    if expected is None:
        layers = sum(b["numel"] for b in plan.json["blocks"] if plan.units[b["unit"]] in plan.layers)
        volume = n * elements + n * (elements + layers)
    else:
        volume = expected * elements
    if sent != volume * 4 * (plan.ranks - 1) // plan.ranks:
        fail(f"a rank sends {sent} bytes a step, expected {volume} elements times (ranks-1)/ranks")
    print("traffic: as in the table")


if __name__ == "__main__":
    main()
