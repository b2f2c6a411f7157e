#!/usr/bin/env python3
"""Compares runs whose optimizer keeps remainders of master weights with runs that keep all of them. Needs only Python.

    remainder_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    same      a step with remainders: losses, norms and the tensors of checkpoints are those without them, in each layout; with
              them, strategies and orders of ops train alike to the bit
    resumed   a checkpoint continues to the bit as the run that made it, also one that was written beside steps, in pieces; runs
              with and without remainders continue each other's
Weights of both kinds of runs differ where a master lies exactly between two bf16 numbers, so further steps are compared within
1e-5; no initial value of these recipes is such a number.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

from compare_runs import Runner, close, equal, strategy_settings
from resume_runs import expect, loads, saves

BASE = ["mixed_precision=bf16_mixed", "optimizer.use_precision_aware_optimizer=true", "model.seq_length=16",
        "model.share_embeddings_and_output_weights=false"]
WHOLE = ["optimizer.store_param_remainders=false"]
DIVIDED = [*strategy_settings("optim_grads_params"), "ddp.num_distributed_optimizer_instances=2",
           "ddp.outer_dp_sharding_strategy=optim", "cluster.gpus_per_node=4"]
DISTRIBUTED = strategy_settings("optim")
LAYOUTS = {"FSDP": strategy_settings("optim_grads_params"), "distributed": DISTRIBUTED, "divided between groups": DIVIDED,
           "stages": [*DISTRIBUTED, "model.pipeline_model_parallel_size=2", "cluster.gpus_per_node=4"]}
EXPERTS = {"experts": [*DISTRIBUTED, "model.expert_model_parallel_size=2", "model.hidden_size=32", "model.ffn_hidden_size=32",
                        "rng.seed=2"]}


def batch(samples, steps):
    return [f"train.micro_batch_size={samples // 4}", f"train.global_batch_size={samples}", f"train.train_iters={steps}",
            "scheduler.lr_warmup_iters=0", "scheduler.lr_decay_iters=10"]


def same_tensors(name, a, b):
    """The newest checkpoints of two folders have the same tensors, and differ in the recipe's settings alone."""
    done = subprocess.run(["shardc", "ckpt", "diff", a, b], capture_output=True, text=True, check=False)
    *others, last = done.stdout.splitlines() or [done.stderr]
    settings = all(re.search(r"^\d+ objects differ:$|^  ([\w./]+\.)?args\.\w+: ", line) for line in others)
    expect(settings and "tensors and" in last, f"{name}: checkpoints differ\n{done.stdout}{done.stderr}")
    print(f"{name}: {last}")


def check_same(runner, folder):
    layouts = EXPERTS if "mixtral" in str(runner.recipe) else LAYOUTS
    sizes = [*BASE, *batch(4, 1)]
    for name, layout in runner.in_turn(layouts.items()):
        ways = {"remainders": [], "whole": WHOLE}
        steps = {way: runner.run(*sizes, *layout, *settings, *saves(folder / name / way, 1)) for way, settings in ways.items()}
        equal(f"{name}, with and without remainders", steps["whole"], steps["remainders"])
        same_tensors(name, folder / name / "whole", folder / name / "remainders")
    if layouts is LAYOUTS:
        several = [*BASE, *batch(4, 4)]
        expected = runner.run_plan(*several, *LAYOUTS["FSDP"])
        expect("master.layers.0 master of layers.0 : u16" in runner.plan_text(), "no remainders")
        equal("FSDP and optim_grads", expected, runner.run(*several, *strategy_settings("optim_grads")))
        orders = runner.run_plan(*several, *DIVIDED, options=["--seed-schedule=1"])
        equal("orders of ops", orders, runner.run_plan(*several, *DIVIDED))


def check_resumed(runner, folder):
    sizes, layout = [*BASE, *batch(4, 6)], LAYOUTS["FSDP"]
    expected = runner.run(*sizes, *layout, *saves(folder / "whole", 3))
    beside = ["checkpoint.async_save=true", "checkpoint.snapshot_limit=20000"]
    equal("saved beside steps", expected, runner.run(*sizes, *layout, *beside, *saves(folder / "beside", 3)))
    same_tensors("saved beside steps", folder / "whole", folder / "beside")
    at = ["checkpoint.ckpt_step=3"]
    equal("resumed", expected[3:], runner.run(*sizes, *layout, *loads(folder / "beside"), *at))
    close("without remainders", runner.run(*sizes, *layout, *WHOLE, *loads(folder / "whole"), *at), expected[3:], tolerance=1e-5)
    other = [*strategy_settings("optim_grads"), "cluster.gpus_per_node=4"]
    runner.run(*sizes, *other, *WHOLE, *saves(folder / "other", 3))
    close("of whole masters", runner.run(*sizes, *LAYOUTS["divided between groups"], *loads(folder / "other"), *at), expected[3:],
          tolerance=1e-4)  # added in another order


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=["same", "resumed"])
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        globals()[f"check_{arguments.check}"](Runner(arguments.recipe, arguments.set), pathlib.Path(folder))


if __name__ == "__main__":
    main()
