#!/usr/bin/env python3
"""Trains small recipes with multi-token prediction. Needs only Python.

    further_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  strategies, tensor-parallel ranks with and without sequence parallelism, slices of sequences, stages of a pipeline and their
              schedules, microbatches, recomputation, tied tables, learned positions, layers with and without experts, losses per
              token and masks; compared with one rank: losses of 5 steps, those of multi-token prediction, and gradients of the first step, within 1e-5
              relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the rows. Some of them run unless
              SHARDC_LONG=1.
    slices    slices of sequences that are too short for each to begin at an aligned address (the input further-context.recipe of the
              faults that were reported); compared with one rank: as one-rank
    same      any schedule, each kind of recomputation, evaluations beside it, and a process for each rank to the bit; stages under
              zero bubble in any schedule
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import os
import random

from compare_runs import FULL, LONG, STRATEGIES, compare_orders, equal, run_check, strategy_settings
from expert_runs import modules, need_told
from hybrid_runs import compare, compare_layouts, with_gradients
from matrix import name_of, table
from pipeline_runs import SCHEDULES

ROWS, MICRO_BATCH, STEPS = 6, 2, 5
RECOMPUTE = {"none": [], "selective": modules("core_attn", "layernorm"), "full": FULL,
             "block": [*FULL[:1], "model.recompute_method=block", "model.recompute_num_layers=1"]}
EXPERTS = ["model.num_moe_experts=4", "model.moe_layer_freq=[0, 1]", "model.moe_router_topk=2",
           "model.moe_router_load_balancing_type=[aux_loss, seq_aux_loss]", "model.moe_aux_loss_coeff=[0.5, 0.3]"]
AXES = {
    "tokens": (1, 2),
    "strategy": STRATEGIES,
    "data": (1, 2),
    "tensor": (1, 2),
    "rows": (False, True),  # divided among tensor-parallel ranks
    "context": (1, 2),
    "stages": (1, 2),
    "schedule": ("1f1b", "interleaved", "zero_bubble"),
    "microbatches": (1, 4),
    "recompute": tuple(RECOMPUTE),
    "tied": (False, True),
    "experts": (False, True),
    "per_token": (False, True),
    "masked": (False, True),
    "learned": (False, True),  # positions, of which the last stage has a table, too
}


def is_valid(row):
    if row["tensor"] == 1 and row["rows"] or row["tensor"] > 1 and row["experts"] and not row["rows"]:
        return False
    return row["schedule"] == "1f1b" or row["stages"] > 1 and (row["schedule"] == "zero_bubble" or row["microbatches"] > 1)


def layout(strategy="no_shard", data=1, tensor=1, rows=False, stages=1, schedule="1f1b", context=1):
    return [*strategy_settings(strategy), *SCHEDULES[schedule], f"cluster.gpus_per_node={data * tensor * stages * context}",
            f"model.context_parallel_size={context}",
            f"model.pipeline_model_parallel_size={stages}", f"model.tensor_model_parallel_size={tensor}",
            f"model.sequence_parallel={str(rows).lower()}", f"train.micro_batch_size={MICRO_BATCH}"]


def model(tokens=2, tied=False, experts=False, per_token=False, masked=False, learned=False):
    return ["model.num_layers=4", f"model.mtp_num_layers={tokens}", "model.mtp_loss_scaling_factor=0.7", "model.vocab_size=251",
            "model.make_vocab_size_divisible_by=64", f"model.share_embeddings_and_output_weights={str(tied).lower()}",
            f"model.calculate_per_token_loss={str(per_token).lower()}", *EXPERTS * experts,
            *["dataset.eod_mask_loss=true", "dataset.eod_token=3"] * masked, *["model.position_embedding_type=learned_absolute"] * learned]


def batch(samples, steps=STEPS):
    return [f"train.global_batch_size={samples}", f"train.train_iters={steps}"]


def compare_told(runner, name, own, alone, tokens):
    """Means of microbatches of unequal tokens are those of the same microbatches."""
    names = {f"mtp_{k} loss" for k in range(1, tokens + 1)}
    found, told = with_gradients(runner, *own), runner.told(names)
    compare(name, found, with_gradients(runner, *alone))
    need_told(name, told, runner.told(names))


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS)
    for row in rows:
        of_run = [*model(*(row[axis] for axis in ("tokens", "tied", "experts", "per_token", "masked", "learned"))),
                  *batch(MICRO_BATCH * row["data"] * row["microbatches"])]
        own = [*of_run, *layout(*(row[axis] for axis in ("strategy", "data", "tensor", "rows", "stages", "schedule", "context"))),
               *RECOMPUTE[row["recompute"]]]
        alone = [*of_run, *layout()]
        compare_told(runner, name_of(row), own, alone, row["tokens"])
    print(f"{len(rows)} rows")


def check_slices(runner):
    for context, positions, tokens, more in ((4, 24, 1, []), (2, 20, 2, []), (2, 12, 2, ["dataset.eod_mask_loss=true", "dataset.eod_token=3"])):
        of_run = [*model(tokens), *batch(2), f"model.seq_length={positions}", *more]
        own = [*of_run, *layout(context=context), "train.micro_batch_size=1"]
        alone = [*of_run, *layout(), "train.micro_batch_size=1"]
        name = f"{context} slices of {positions} positions"
        compare_told(runner, name, own, alone, tokens)


def check_same(runner):
    for experts in (False, True):
        settings = [*model(experts=experts), *batch(8, 4), *layout("optim_grads_params", 2, 2, True)]
        expected = runner.run_plan(*settings)
        evaluated = [*settings, "validation.eval_interval=2", "validation.eval_iters=2"]
        equal("with evaluations", expected, runner.run_plan(*evaluated))
        compare_orders(runner, settings, RECOMPUTE)
    settings = [*model(tied=True), *batch(8, 3), *layout(stages=2, schedule="zero_bubble")]
    equal("zero bubble", runner.run_plan(*settings), runner.run_plan(*settings, options=["--seed-schedule=1"]))


def check_layouts(runner):
    # With no padding of the vocabulary, which tensor-parallel ranks have more of.
    runner.settings = [*runner.settings, *model(), "model.vocab_size=256"]
    layouts = {"one rank": layout("optim_grads_params"), "FSDP on 2": layout("optim_grads_params", 2),
               "2 tensor-parallel ranks": [*layout("optim_grads_params", 1, 2, True)],
               "2 tensor-parallel ranks, twice": [*layout("optim_grads_params", 2, 2, True)]}
    compare_layouts(runner, layouts, ("one rank", "FSDP on 2"))


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "slices": check_slices, "same": check_same, "layouts": check_layouts})
