#!/usr/bin/env python3
"""Trains a small recipe with chunks and layers without rotations under many layouts. Needs only Python.

    chunk_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  sizes of chunks, which also end within slices of sequences, layers without rotations, norms of queries and keys without
              weights, queries that grow with their positions, key/value groups, tensor-parallel sizes, sequence parallelism, slices of
              sequences and ways of exchanging, stages and schedules, strategies, groups of data-parallel ranks, microbatches,
              recomputation, documents, dropout; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5
              relative. Rows are drawn so that each has as many new pairs of values as possible; SEED=n (1 by default) draws
              them. Some of them run unless SHARDC_LONG=1.
    same      any schedule, each kind of recomputation, and a process for each rank to the bit
"""

import context_runs
import latent_runs
from compare_runs import run_check
from latent_runs import switch
from tensor_runs import RECOMPUTE

HEADS = 8
SIZES = ["model.num_layers=4", "model.num_moe_experts=none", "model.moe_layer_freq=none", "model.moe_shared_expert_intermediate_size=none",
         f"model.num_attention_heads={HEADS}", "model.kv_channels=8", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
LAYERS = {"every fourth": "[4]", "every second": "[2]", "two": "[1, 0, 0, 1]"}
AXES = {
    "chunk": (0, 5, 12),
    "unrotated": tuple(LAYERS),
    "norms": (True, False),
    "grow": (True, False),
    "groups": (8, 2),  # of keys and values
    **latent_runs.layout_axes(RECOMPUTE),
}


def is_valid(row):
    own = max(row["groups"] // row["tensor"], 1)
    return (latent_runs.is_valid(row) and own % context_runs.EXCHANGED.get(row["way"], row["context"]) == 0
            and not (row["documents"] and row["chunk"]))


def model(row):
    return [*SIZES, f"model.attention_chunk_size={row['chunk'] or 'none'}", f"model.no_rope_freq={LAYERS[row['unrotated']]}",
            switch("qk_l2_norm", row["norms"]), switch("attn_temperature_tuning", row["grow"]),
            f"model.num_query_groups={row['groups']}", *latent_runs.training(row)]


if __name__ == "__main__":
    groups = "model.num_query_groups=4"
    run_check({"one-rank": lambda runner: latent_runs.check_rows(runner, AXES, is_valid, model, RECOMPUTE),
               "same": lambda runner: latent_runs.check_schedules(runner, "p2p", RECOMPUTE, *SIZES, groups)})
