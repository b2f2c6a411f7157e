#!/usr/bin/env python3
"""Trains a small recipe whose attention has sinks under many layouts. Needs only Python.

    sink_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  learned sinks and the constant one, windows of some layers, gated units with clamps, tensor-parallel sizes, key/value groups,
              also fewer than ranks, sequence parallelism, slices of sequences and ways of exchanging, stages and schedules,
              strategies, groups of data-parallel ranks, microbatches, recomputation, documents, dropout; compared with one rank: losses of
              5 steps, and gradients of the first, within 1e-5 relative. Rows are drawn so that each has as many new pairs of
              values as possible; SEED=n (1 by default) draws them. Some of them run unless SHARDC_LONG=1.
    same      any schedule, each kind of recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import context_runs
import latent_runs
from compare_runs import run_check
from tensor_runs import RECOMPUTE

HEADS = 8
SIZES = ["model.num_layers=4", f"model.num_attention_heads={HEADS}", "model.kv_channels=8", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
AXES = {
    "sinks": ("learnable", "off_by_one"),
    "window": (False, True),
    "clamp": (False, True),
    "groups": (8, 2, 1),  # of keys and values
    **latent_runs.layout_axes(RECOMPUTE),
}


def is_valid(row):
    own = max(row["groups"] // row["tensor"], 1)
    return latent_runs.is_valid(row) and own % context_runs.EXCHANGED.get(row["way"], row["context"]) == 0


def model(row):
    return [*SIZES, f"model.softmax_type={row['sinks']}", f"model.num_query_groups={row['groups']}",
            *([] if row["window"] else ["model.window_size=none", "model.window_attn_skip_freq=none"]),
            *([] if row["clamp"] else ["model.activation_func_clamp_value=none"]), *latent_runs.training(row)]


if __name__ == "__main__":
    groups = "model.num_query_groups=4"
    run_check({"one-rank": lambda runner: latent_runs.check_rows(runner, AXES, is_valid, model, RECOMPUTE),
               "same": lambda runner: latent_runs.check_schedules(runner, "a2a", RECOMPUTE, *SIZES, groups),
               "layouts": lambda runner: latent_runs.check_saves(runner, *SIZES, groups)})
