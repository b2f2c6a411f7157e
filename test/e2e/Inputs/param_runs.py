#!/usr/bin/env python3
"""Trains small recipes with frozen parameters and with each optimizer under many layouts. Needs only Python.

    param_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  sets of frozen parameters, optimizers, tensor-parallel sizes, sequence parallelism, strategies, groups of data-parallel
              ranks, microbatches, recomputation; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5
              relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the rows. Some of them run unless
              SHARDC_LONG=1.
    moments   Adam with moments in bf16: strategies, remainders of masters, any schedule, and a run that continues from a
              checkpoint, to the bit
    kept      frozen weights, and nothing else, are in each checkpoint what they were at the start; a run that continues from
              one trains as the run that made it, to the bit
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import tensor_runs
from compare_runs import LONG, STRATEGIES, equal, run_check, strategy_settings
from hybrid_runs import compare, with_gradients
from matrix import name_of, table
from resume_runs import loads, saves

ROWS = 6  # of the table, unless all run
FROZEN = {
    "nothing": [],
    "below": ['model.freeze=["embedding", "layers.0"]'],
    "above": ['model.freeze=["layers.1", "head"]'],
    "norms and biases": ['model.freeze=["norm", "bias"]'],
    "matrices of a layer": ['model.freeze=["layers.1.qkv", "layers.0.feed_forward", "embedding"]'],
}
OPTIMIZERS = {
    "adam": [],
    "sgd": ["optimizer.optimizer=sgd", "optimizer.lr=0.05"],
    "lion": ["optimizer.optimizer=lion", "optimizer.lr=1e-4", "optimizer.lion_beta1=0.9", "optimizer.lion_beta2=0.98"],
}
AXES = {
    "frozen": tuple(FROZEN),
    "optimizer": tuple(OPTIMIZERS),
    **{axis: tensor_runs.AXES[axis] for axis in ("rows", "data", "instances", "outer", "microbatches", "recompute", "tied")},
    "tensor": (1, 2),
    "strategy": (*STRATEGIES, "torch_fsdp2"),
}


def is_valid(row):
    sharded = row.get("strategy", "no_shard") not in ("no_shard", "optim")
    return tensor_runs.is_valid({**row, "pieces": 0}) and not (row.get("rows") and row.get("tensor") == 1) and \
        not (sharded and row.get("optimizer") == "lion")  # fsdp-optimizer


def model(row):
    return [*tensor_runs.model({"groups": 4, "per_token": False, **row}), *FROZEN[row["frozen"]], *OPTIMIZERS[row["optimizer"]]]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS, 2000)
    for row in rows:
        expected = with_gradients(runner, *model(row), *tensor_runs.layout())
        own = tensor_runs.layout(*(row[axis] for axis in ("tensor", "rows", "strategy", "data", "instances", "outer")))
        compare(name_of(row), with_gradients(runner, *model(row), *own, *tensor_runs.RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


def check_moments(runner):
    narrow = ["mixed_precision=bf16_mixed", "optimizer.use_precision_aware_optimizer=true", "optimizer.exp_avg_dtype=bf16",
              "optimizer.exp_avg_sq_dtype=bf16", "train.global_batch_size=4", "train.train_iters=4", "cluster.gpus_per_node=2",
              "scheduler.lr_decay_iters=10", "scheduler.lr_warmup_iters=0"]
    ways = {strategy: [*narrow, *strategy_settings(strategy), "train.micro_batch_size=2"] for strategy in STRATEGIES[1:]}
    expected = runner.run_plan(*ways["optim"])
    for name, settings in ways.items():
        equal(name, expected, runner.run_plan(*settings))
        equal(f"{name}, schedule 1", expected, runner.run_plan(*settings, options=["--seed-schedule=1"]))
    wide = runner.run_plan(*ways["optim"], "optimizer.exp_avg_dtype=fp32", "optimizer.exp_avg_sq_dtype=fp32")
    if wide[:1] != expected[:1] or wide == expected:
        sys.exit(f"moments in fp32 give {wide}, those in bf16 {expected}: only the first step has to be the same")
    with tempfile.TemporaryDirectory() as folder:
        both = ways["optim_grads_params"]
        runner.run_plan(*both, "train.train_iters=2", *saves(folder, 2))
        equal("continued", expected[2:], runner.run_plan(*both, *loads(folder)))


def told(*command):
    done = subprocess.run(["shardc", "ckpt", *command, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["tensors"]


def check_kept(runner):
    sizes = ["train.micro_batch_size=2", "train.global_batch_size=4", "cluster.gpus_per_node=2",
             "model.share_embeddings_and_output_weights=false", "scheduler.lr_decay_iters=10", "scheduler.lr_warmup_iters=0",
             "mixed_precision=bf16_mixed"]
    for strategy in ("optim", "optim_grads_params"):
        settings = [*sizes, *strategy_settings(strategy), *FROZEN["below"]]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            runner.run_plan(*settings, "train.train_iters=1", *saves(folder / "first", 1))
            whole = runner.run_plan(*settings, "train.train_iters=4", *saves(folder / "last", 2))
            changed = {tensor["name"] for tensor in told("diff", "--tensors-only", folder / "first", folder / "last")}
            kept = [name for name in told("inspect", folder / "last") if "embedding." in name or ".layers.0." in name]
            if not kept or changed & set(kept) or any("optimizer" in name for name in kept):
                sys.exit(f"frozen are {kept}, of which {changed & set(kept)} are not what they were")
            if not any("linear_fc1.weight" in name for name in changed):
                sys.exit(f"only {changed} are trained")
            resumed = runner.run_plan(*settings, "train.train_iters=4", *loads(folder / "last"), "checkpoint.ckpt_step=2")
            equal(f"{strategy}, continued", whole[2:], resumed)


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "moments": check_moments, "kept": check_kept})
