#!/usr/bin/env python3
"""Trains small recipes with sequences cut among context-parallel ranks. Needs only Python.

    context_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  context-parallel sizes and ways, tensor parallelism, key/value groups, also fewer than ranks, strategies, groups of data-parallel ranks, microbatches,
              recomputation, tied tables, losses per token, documents, windows; compared with one rank: losses of 5 steps, and gradients
              of the first, within 1e-5 relative, and losses of evaluations. Each pair of values occurs in a row; SEED=n (1
              by default) draws the rows. Some of them run unless SHARDC_LONG=1.
    same      any schedule, selective and full recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import os
import random

from compare_runs import FULL, LONG, STRATEGIES, equal, fsdp2_settings, run_check, strategy_settings
from hybrid_runs import compare, compare_layouts, with_gradients
from matrix import name_of, table
from tensor_runs import RECOMPUTE, SELECTIVE

ROWS = 5  # of the table, unless all run
MICRO_BATCH, STEPS = 2, 5
WAYS = {"p2p": "[p2p]", "all_gather": "[all_gather]", "a2a": "[a2a]", "a2a+p2p": '["a2a+p2p"]',
        "layers": '[p2p, a2a]', "levels": '["a2a+p2p", all_gather]'}
EXCHANGED = {"p2p": 1, "all_gather": 1, "a2a+p2p": 2, "levels": 2}  # ranks among which heads go; all in other ways
RANKS_MAX = 16
SIZES = ["model.num_attention_heads=16", "model.num_query_groups=8",
         "model.vocab_size=23", "model.make_vocab_size_divisible_by=16"]  # which pads alike, and has many document ends
MASKS = {"none": [], "documents": ["dataset.eod_token=3", "dataset.reset_position_ids=true",
                                   "dataset.reset_attention_mask=true", "dataset.eod_mask_loss=true"],
         "window": ["model.window_size=[5, 0]"]}
AXES = {
    "context": (2, 4),
    "way": tuple(WAYS),
    "tensor": (1, 2, 4),
    "groups": (8, 4, 2),  # of keys and values
    "rows": (False, True),
    "strategy": (*STRATEGIES, "torch_fsdp2"),
    "data": (1, 2),
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),  # of state between instances
    "microbatches": (1, 3),
    "recompute": ("none", "selective", "full"),
    "tied": (False, True),
    "per_token": (False, True),
    "mask": tuple(MASKS),
}


def worst_of(found, expected):
    """Largest relative distance of losses and norms."""
    return max(abs(x / y - 1) for each in zip(found, expected, strict=True) for x, y in zip(*each))


def has_levels(way):
    return way in ("a2a+p2p", "levels")


def is_valid(row):
    """Whether no rule refuses the values of the row that are already chosen."""
    if row["instances"] > 1 and (row["data"] < 2 or row["strategy"] in ("no_shard", "torch_fsdp2")):
        return False
    if row["outer"] == "optim" and (row["instances"] == 1 or row["strategy"] != "optim_grads_params"):
        return False
    if row["rows"] and row["tensor"] == 1:
        return False
    if has_levels(row["way"]) and row["context"] < 4:
        return False
    if max(row["groups"] // row["tensor"], 1) % EXCHANGED.get(row["way"], row["context"]) != 0:
        return False
    if row["context"] * row["tensor"] * row["data"] > RANKS_MAX:
        return False
    return not (row["tied"] and row["strategy"] == "torch_fsdp2")


def layout(context=1, way="p2p", tensor=1, rows=False, strategy="no_shard", data=1, instances=1, outer="no_shard"):
    ranks = context * tensor * data
    if strategy == "torch_fsdp2":
        found = [*fsdp2_settings(True, ranks), "checkpoint.ckpt_format=torch_dist"]
    else:
        found = [*strategy_settings(strategy), f"cluster.gpus_per_node={ranks}"]
    if has_levels(way):
        found += ["model.hierarchical_context_parallel_sizes=[2, 2]"]
    return [*found, f"model.context_parallel_size={context}", f"model.cp_comm_type={WAYS[way]}",
            f"model.tensor_model_parallel_size={tensor}", f"model.sequence_parallel={str(rows).lower()}",
            f"ddp.num_distributed_optimizer_instances={instances}", f"ddp.outer_dp_sharding_strategy={outer}",
            f"train.micro_batch_size={MICRO_BATCH}"]


def model(row):
    return [*SIZES, f"model.num_query_groups={row['groups']}", *MASKS[row["mask"]],
            f"model.share_embeddings_and_output_weights={str(row['tied']).lower()}",
            f"model.calculate_per_token_loss={str(row['per_token']).lower()}",
            f"train.global_batch_size={MICRO_BATCH * row['data'] * row['microbatches']}", f"train.train_iters={STEPS}"]


def check_one_rank(runner):
    rows = table(AXES, is_valid, random.Random(int(os.environ.get("SEED", "1"))), None if LONG else ROWS)
    worst = 0
    for row in rows:
        expected = with_gradients(runner, *model(row), *layout())
        own = layout(*(row[axis] for axis in ("context", "way", "tensor", "rows", "strategy", "data", "instances", "outer")))
        found = with_gradients(runner, *model(row), *own, *RECOMPUTE[row["recompute"]])
        compare(name_of(row), found, expected)
        worst = max(worst, worst_of(found[0], expected[0]))
    print(f"{len(rows)} rows, largest distance of losses and norms {worst:.3e}")


def check_same(runner):
    for way in runner.with_kernels(WAYS):
        settings = [*SIZES, *MASKS["documents"], "train.global_batch_size=8", "train.train_iters=4",
                    *layout(4, way, 1, False, "optim_grads_params", 2), "validation.eval_interval=2",
                    "validation.eval_iters=2"]
        expected = runner.run_plan(*settings)
        for seed in (1, 2):
            equal(f"{way}, seed {seed}", expected, runner.run_plan(*settings, options=[f"--seed-schedule={seed}"]))
        equal(f"{way}, all layers computed again", expected, runner.run_plan(*settings, *FULL))
        equal(f"{way}, parts of layers computed again", expected, runner.run_plan(*settings, *SELECTIVE))
    expected = runner.run_plan(*settings)
    records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
    equal("a process for each rank", expected, [(each["loss"], each["grad_norm"]) for each in records])


def check_layouts(runner):
    def under(*axes):
        return [*SIZES, *layout(*axes), *strategy_settings("optim_grads_params")[:2]]

    layouts = {"one rank": under(), "FSDP on 3": under(1, "p2p", 1, False, "optim_grads_params", 3),
               "context 2": under(2, "p2p", 1, False, "optim_grads_params", 1),
               "context 4, heads exchanged": under(4, "a2a", 1, False, "optim_grads_params", 1),
               "context 2, tensor 2 by rows, FSDP 3": under(2, "all_gather", 2, True, "optim_grads_params", 3)}
    compare_layouts(runner, layouts, ("one rank", "context 2", "context 2, tensor 2 by rows, FSDP 3"))


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "same": check_same, "layouts": check_layouts})
