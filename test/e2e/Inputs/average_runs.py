#!/usr/bin/env python3
"""Trains a small recipe with each way to average losses under many layouts, and compares losses, norms and evaluations of
three steps with those of one rank, within 1e-5 relative. Needs only Python.

    average_runs.py walk RECIPE [--set path=value ...]

Each combination of: the loss of a step divided once by its tokens, or the mean of the means of microbatches; gradients scaled
before their sums, or averaged in the collectives; strategies, groups of ranks, slices of sequences, parts of layers, stages;
all tokens of equal weight, masked tokens, packs; one and three microbatches. Unless SHARDC_LONG=1, some of them; SEED=n (1 by
default) draws these.
"""

import itertools
import json
import os
import pathlib
import random
import sys
import tempfile

from compare_runs import LONG, STRATEGIES, fsdp2_settings, run_check, strategy_settings
from matrix import name_of, table
from sft_losses import write_packs

ROWS, STEPS, MICRO_BATCH, PACKED = 6, 3, 2, 4  # PACKED: rows of a pack
TOLERANCE = 1e-5
AXES = {
    "average": ("tokens", "means"),
    "collective": ("adds", "averages"),
    "strategy": (*STRATEGIES, "fsdp2"),
    "ranks": (1, 2, 4),
    "groups": (1, 2),
    "slices": (1, 2),
    "parts": (1, 2),
    "stages": (1, 2),
    "tokens": ("plain", "masked", "packs"),
    "microbatches": (1, 3),
}


def is_valid(row):
    """Whether no rule refuses the row, and it has at most 8 ranks."""
    if row["ranks"] * row["slices"] * row["parts"] * row["stages"] > 8:
        return False
    if row["strategy"] == "fsdp2" and row["parts"] > 1:
        return False
    if row["groups"] > 1 and (row["ranks"] == 1 or row["strategy"] in ("no_shard", "fsdp2")):
        return False
    return row["stages"] == 1 or row["strategy"] in STRATEGIES[:2]


def packs(count):
    """Rows of random lengths, of which random tokens count; nothing counts in the second pack."""
    draw = random.Random(5)
    made = []
    for number in range(count):
        lengths = [draw.randrange(3, 9) for _ in range(PACKED)]
        share = 0 if number == 1 else draw.random()
        made.append([([draw.randrange(257) for _ in range(length)], [int(draw.random() < share) for _ in range(length)])
                     for length in lengths])
    return made


def of_tokens(row, folder):
    if row["tokens"] == "plain":
        return ["model.make_vocab_size_divisible_by=64"]
    if row["tokens"] == "masked":
        return ["dataset.eod_mask_loss=true", "dataset.eod_token=3", "model.vocab_size=31", "model.make_vocab_size_divisible_by=64"]
    return ["model.make_vocab_size_divisible_by=64", "dataset.kind=packed", f'dataset.train_data_path=["{folder}/packs"]', f'dataset.valid_data_path=["{folder}/packs"]',
            "dataset.dataloader_type=single"]


def of_row(row):
    samples = MICRO_BATCH * row["ranks"] * row["microbatches"]
    return [f"model.calculate_per_token_loss={str(row['average'] == 'tokens').lower()}", f"train.micro_batch_size={MICRO_BATCH}",
            f"train.global_batch_size={samples}", f"train.train_iters={STEPS}", "validation.eval_interval=3", "validation.eval_iters=1",
            "validation.eval_global_batch_size=24"]


def of_layout(row):
    ranks = row["ranks"] * row["slices"] * row["parts"] * row["stages"]
    strategy = fsdp2_settings(True, ranks) if row["strategy"] == "fsdp2" else strategy_settings(row["strategy"])
    return [*strategy, f"cluster.gpus_per_node={ranks}", f"ddp.average_in_collective={str(row['collective'] == 'averages').lower()}",
            f"ddp.num_distributed_optimizer_instances={row['groups']}", f"model.context_parallel_size={row['slices']}",
            f"model.tensor_model_parallel_size={row['parts']}", f"model.sequence_parallel={str(row['parts'] > 1).lower()}",
            f"model.pipeline_model_parallel_size={row['stages']}"]


def figures(runner, *settings):
    runner.run(*settings)
    lines = map(json.loads, (pathlib.Path(runner.folder.name) / "metrics.jsonl").read_text().splitlines())
    return [(name, line[name]) for line in lines for name in ("loss", "grad_norm", "eval_loss") if name in line]


def check_walk(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = [row for row in (dict(zip(AXES, values)) for values in itertools.product(*AXES.values())) if is_valid(row)] if LONG else \
        table(AXES, is_valid, draw, ROWS)
    alone = {}
    with tempfile.TemporaryDirectory() as folder:
        write_packs(f"{folder}/packs", packs(96))
        for row in rows:
            training = [*of_row(row), *of_tokens(row, folder)]
            expected = alone.get(tuple(training)) or alone.setdefault(tuple(training), figures(runner, *training, "cluster.gpus_per_node=1"))
            found = figures(runner, *training, *of_layout(row))
            if [name for name, _ in found] != [name for name, _ in expected]:
                sys.exit(f"{name_of(row)}: {found}, one rank has {expected}")
            name, worst = max(((name, abs(x - y) / max(abs(y), 1e-9)) for (name, x), (_, y) in zip(found, expected)), key=lambda pair: pair[1])
            if worst > TOLERANCE:
                sys.exit(f"{name_of(row)}: {name} differs by {worst:.3e}; {found}, one rank has {expected}")
            print(f"{name_of(row)}: within {worst:.1e}")
    print(f"{len(rows)} rows")


if __name__ == "__main__":
    run_check({"walk": check_walk})
