#!/usr/bin/env python3
"""Trains a small recipe of latent attention under many layouts. Needs only Python.

    latent_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  compressed queries or not, rope or YaRN, sinks, tensor-parallel sizes, sequence parallelism, rows in pieces, slices of sequences and
              ways of exchanging, stages and schedules, strategies, groups of data-parallel ranks, microbatches, recomputation, tied
              tables, losses per token, documents, dropout; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5
              relative. Rows are drawn so that each has as many new pairs of values as possible; SEED=n (1 by default) draws them. A
              part of them runs unless SHARDC_LONG=1.
    same      any schedule, each kind of recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import os
import random

import context_runs
from compare_runs import FULL, LONG, STRATEGIES, compare_orders, run_check, strategy_settings
from hybrid_runs import compare, compare_layouts, with_gradients
from matrix import name_of, pairs_of
from pipeline_runs import SCHEDULES, has_order
from tensor_runs import pieces

ROWS, ROWS_LONG = 5, 80
SAMPLE = 300  # rows to choose the next one from
RANKS_MAX = 16
STEPS, HEADS = 5, 8
SIZES = ["model.num_layers=4", f"model.num_attention_heads={HEADS}", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
RECOMPUTE = {"none": [], "full": FULL}
RECOMPUTE |= {name: ["model.recompute_granularity=selective", f"model.recompute_modules=[{name}]"]
              for name in ("mla_up_proj", "core_attn, mla_up_proj", "core_attn, layernorm, mlp, mla_up_proj")}
ROTATIONS = {"rope": ["model.rope_type=rope"],
             "yarn": ["model.rope_type=yarn", "model.mscale=1.0", "model.mscale_all_dim=0.5"]}


def layout_axes(recompute):
    """Axes of the layouts of a model with another attention. `recompute`: the recomputed modules, by name."""
    return {
        "tensor": (1, 2, 4),
        "rows": (False, True),
        "pieces": (0, 2),
        "context": (1, 2, 4),
        "way": ("p2p", "all_gather", "a2a", "a2a+p2p"),
        "stages": (1, 2),
        "schedule": tuple(SCHEDULES),
        "strategy": (*STRATEGIES, "torch_fsdp2"),
        "data": (1, 2),
        "instances": (1, 2),
        "outer": ("no_shard", "optim"),
        "microbatches": (1, 4),
        "recompute": tuple(recompute),
        "tied": (False, True),
        "per_token": (False, True),
        "documents": (False, True),
        "dropout": (False, True),
    }


AXES = {
    "queries": (False, True),  # compressed
    "rotation": tuple(ROTATIONS),
    "sinks": ("vanilla", "learnable", "off_by_one"),
    **layout_axes(RECOMPUTE),
}


def is_valid(row):
    tensor, context, stages, strategy = row["tensor"], row["context"], row["stages"], row["strategy"]
    if row["instances"] > 1 and (row["data"] < 2 or strategy in ("no_shard", "torch_fsdp2")):
        return False
    if row["outer"] == "optim" and (row["instances"] == 1 or strategy != "optim_grads_params"):
        return False
    if (row["rows"] and tensor == 1) or (row["pieces"] and (not row["rows"] or stages > 1 or row["dropout"])):
        return False
    if (context == 1 and row["way"] != "p2p") or (context < 4 and row["way"] == "a2a+p2p"):
        return False
    if HEADS // tensor % context_runs.EXCHANGED.get(row["way"], context) != 0:
        return False
    if strategy == "torch_fsdp2" and (row["tied"] or stages > 1):
        return False
    if stages == 1 and row["schedule"] != "1f1b":
        return False
    if not has_order(row["schedule"], stages, row["microbatches"], stages):
        return False
    return tensor * context * stages * row["data"] <= RANKS_MAX


def draw_rows(axes, is_valid, draw, count):
    seen = set()
    for _ in range(count):
        rows = []
        while len(rows) < SAMPLE:
            row = {axis: draw.choice(values) for axis, values in axes.items()}
            if is_valid(row):
                rows.append(row)
        row = max(rows, key=lambda each: len(pairs_of(each) - seen))
        seen |= pairs_of(row)
        yield row


def layout(row):
    names = ("context", "way", "tensor", "rows", "strategy", "data", "instances", "outer")
    found = context_runs.layout(*(row[name] for name in names))
    ranks = row["tensor"] * row["context"] * row["stages"] * row["data"]
    found += [f"cluster.gpus_per_node={ranks}", f"model.pipeline_model_parallel_size={row['stages']}",
              *SCHEDULES[row["schedule"]]]
    return found + (pieces(row["pieces"]) if row["pieces"] else [])


def switch(name, value):
    return f"model.{name}={str(value).lower()}"


def training(row):
    """The settings with which both runs of a row train, apart from the model."""
    batch = context_runs.MICRO_BATCH * row["data"] * row["microbatches"]
    return [*context_runs.MASKS["documents" if row["documents"] else "none"],
            switch("share_embeddings_and_output_weights", row["tied"]), switch("calculate_per_token_loss", row["per_token"]),
            f"model.hidden_dropout={0.1 * row['dropout']}", f"model.attention_dropout={0.1 * row['dropout']}",
            f"train.global_batch_size={batch}", f"train.train_iters={STEPS}"]


def check_rows(runner, axes, is_valid, model, recompute):
    """Compares rows of the axes with one rank."""
    count = ROWS_LONG if LONG else ROWS
    for row in draw_rows(axes, is_valid, random.Random(int(os.environ.get("SEED", "1"))), count):
        expected = with_gradients(runner, *model(row), *context_runs.layout())
        found = with_gradients(runner, *model(row), *layout(row), *recompute[row["recompute"]])
        compare(name_of(row), found, expected)
    print(f"{count} rows")


def check_schedules(runner, way, recompute, *sizes):
    settings = [*sizes, "train.global_batch_size=8", "train.train_iters=4", "model.attention_dropout=0.1",
                *context_runs.layout(2, way, 2, True, "optim_grads_params", 2)]
    compare_orders(runner, settings, recompute)


def check_saves(runner, *sizes):
    def under(*axes):
        return [*sizes, *context_runs.layout(*axes), *strategy_settings("optim_grads_params")[:2]]

    layouts = {"one rank": under(), "tensor 4 by rows": under(1, "p2p", 4, True, "optim_grads_params", 1),
               "context 2, tensor 2 by rows, FSDP 3": under(2, "all_gather", 2, True, "optim_grads_params", 3)}
    compare_layouts(runner, layouts, ("one rank", "context 2, tensor 2 by rows, FSDP 3"))


def checks(axes, is_valid, model, recompute, way, *sizes):
    """The checks for run_check(): rows of these axes compared with one rank, orders of ops with context-parallel ranks
    that use this exchange, and saves that are loaded in other layouts."""
    return {"one-rank": lambda runner: check_rows(runner, axes, is_valid, model, recompute),
            "same": lambda runner: check_schedules(runner, way, recompute, *sizes),
            "layouts": lambda runner: check_saves(runner, *sizes)}


def model(row):
    return [*SIZES, *ROTATIONS[row["rotation"]], f"model.softmax_type={row['sinks']}", *([] if row["queries"] else ["model.q_lora_rank=none"]),
            *training(row)]


if __name__ == "__main__":
    run_check(checks(AXES, is_valid, model, RECOMPUTE, "p2p", *SIZES))
