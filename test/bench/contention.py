#!/usr/bin/env python3
"""Measures by how much transfers slow down kernels in a traced step: (time of the kernels in the step - time of the
same kernels alone) / step.

    contention.py STEP.json ALONE.json [--shards=4] [--steps=3]

Both files come from `shardc-run --trace`. STEP is a run on several GPUs. ALONE is a plan with the same layers (or
fewer) on one GPU of that machine with the same cache of products: there, the same kernels run one after the other,
under the same power limit and without transfers. Two kernels are the same if op, value (without the number of the
layer) and kernel are the same; the mean of their times is used. Kernels over shards of parameters (adamw, sum_squares)
are assumed to be --shards times as large alone, if the units are the same. Kernels without a counterpart are printed
and not included in the sum.
"""

import argparse
import collections
import json
import re
import statistics

SHARDED = {"adamw", "sum_squares"}
TRANSFERS = {"all_gather", "reduce_scatter", "all_reduce"}


def without_layer(value):
    """'l7.fc1' and 'd.w.decoder.layers.7.mlp.linear_fc1.weight' without the 7."""
    return re.sub(r"(^|\.)l?\d+(?=\.|$)", r"\1", value)


def kernels(path):
    """Milliseconds of each piece of work by op, value and kernel; and from the first to the last."""
    spans = [e for e in json.loads(open(path).read())["traceEvents"] if e["ph"] == "X"]
    found = collections.defaultdict(list)
    for span in spans:
        label = re.match(r"(\w+): (\S+) %(\S+)", span["name"])
        if label and label[2] not in TRANSFERS:
            found[label[2], without_layer(label[3]), span["args"]["work"]].append(span["dur"] / 1e3)
    return found, (max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans)) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step")
    parser.add_argument("alone")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="that a trace holds")
    options = parser.parse_args()
    (step, length), (alone, _) = kernels(options.step), kernels(options.alone)
    length /= options.steps
    rows, lost, compared, missing = collections.defaultdict(lambda: [0.0, 0.0]), 0.0, 0.0, collections.Counter()
    for kernel, times in step.items():
        total = sum(times) / options.steps
        if kernel not in alone:
            missing[kernel[0]] += total
            continue
        by = options.shards if kernel[0] in SHARDED else 1
        same = statistics.fmean(alone[kernel]) / by * len(times) / options.steps
        rows[kernel[0]][0] += total
        rows[kernel[0]][1] += same
        lost += total - same
        compared += total
    print(f"{'op':<20} {'in the step':>12} {'alone':>10} {'lost':>8}  ms")
    for op, (total, same) in sorted(rows.items(), key=lambda row: -row[1][0]):
        print(f"{op:<20} {total:12.3f} {same:10.3f} {total - same:8.3f}")
    print(f"{'sum':<20} {compared:12.3f} {compared - lost:10.3f} {lost:8.3f}, {100 * lost / length:.2f} % of {length:.3f} ms")
    print("without a counterpart: " + (", ".join(f"{op} {ms:.3f} ms" for op, ms in missing.most_common()) or "none"))


if __name__ == "__main__":
    main()
