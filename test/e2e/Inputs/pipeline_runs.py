#!/usr/bin/env python3
"""Trains a small model in pipelines, and on one rank. Needs only Python.

    pipeline_runs.py RECIPE [--set path=value ...]

Pairwise complete over stages, microbatches, ranks of a stage, strategies, tied and untied embeddings, and recomputation:
losses and gradient norms of 5 steps as on one rank, within 1e-5 relative. By default a few of the runs, with
SHARDC_LONG=1 all of them.
"""

import argparse
import itertools

from compare_runs import FULL, LONG, STRATEGIES, Runner, close, strategy_settings

AXES = {
    "stages": (2, 3, 4),
    "microbatches": (1, 2, 3, 5, 8),
    "ranks": (1, 2),
    "strategy": tuple(STRATEGIES),
    "tied": (False, True),
    "recompute": (False, True),
}
LAYERS = 12  # divisible by every number of stages
STEPS = 5
TOLERANCE = 1e-5
SHORT = 3  # runs by default


def pairwise(axes):
    """Rows in which each pair of values of two axes occurs: each row takes as many new pairs as any could."""
    names = list(axes)
    rows = list(itertools.product(*axes.values()))
    pairs_of = {row: {(names[i], row[i], names[k], row[k]) for i in range(len(names)) for k in range(i)} for row in rows}
    left = set().union(*pairs_of.values())
    while left:
        row = max(rows, key=lambda r: len(pairs_of[r] & left))
        left -= pairs_of[row]
        yield dict(zip(names, row))


def model(case):
    settings = [f"model.num_layers={LAYERS}", f"train.train_iters={STEPS}", "train.micro_batch_size=1",
                f"train.global_batch_size={case['microbatches'] * case['ranks']}",
                f"model.share_embeddings_and_output_weights={str(case['tied']).lower()}"]
    return settings + (FULL if case["recompute"] else [])


def pipeline(case):
    sharding = strategy_settings(case["strategy"]) if case["ranks"] > 1 else []
    return [*sharding, f"model.pipeline_model_parallel_size={case['stages']}",
            f"cluster.gpus_per_node={case['stages'] * case['ranks']}"]


def compare(runner, case, expected):
    name = ", ".join(f"{key} {value}" for key, value in case.items())
    found = runner.run(*model(case), *pipeline(case))
    close(name, found, expected, tolerance=TOLERANCE)
    close(f"{name}: norms", [(norm, 0) for _, norm in found], [(norm, 0) for _, norm in expected], tolerance=TOLERANCE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    runner = Runner(args.recipe, args.settings)
    expected = {}
    cases = list(pairwise(AXES))
    for case in cases if LONG else cases[:: max(1, len(cases) // SHORT)]:
        alone = tuple(model(case))
        if alone not in expected:
            expected[alone] = runner.run(*alone, "cluster.gpus_per_node=1")
        compare(runner, case, expected[alone])


if __name__ == "__main__":
    main()
