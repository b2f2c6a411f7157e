#!/usr/bin/env python3
"""Trains a small recipe whose layers have norms in other places under many layouts. Needs only Python.

    norm_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  norms before and behind attention and the feed-forward layer, of queries and keys by heads or of all heads, kinds of norms,
              rotations of parts of a head, key/value groups, tensor-parallel sizes, sequence parallelism, slices of sequences and
              ways of exchanging, stages and schedules, strategies, groups of data-parallel ranks, microbatches, recomputation,
              documents, dropout; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5 relative. Rows are drawn
              so that each has as many new pairs of values as possible; SEED=n (1 by default) draws them. Some of them run unless
              SHARDC_LONG=1.
    same      any schedule, each kind of recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import context_runs
import latent_runs
from compare_runs import run_check
from latent_runs import switch
from tensor_runs import RECOMPUTE

HEADS = 8
SIZES = ["model.num_layers=4", f"model.num_attention_heads={HEADS}", "model.kv_channels=8", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
NORMS = {"none": {}, "heads": {"qk_layernorm": True}, "all": {"qk_layernorm": True, "qk_layernorm_full_width": True}}
AXES = {
    "before": (True, False),
    "behind_attention": (True, False),
    "behind_mlp": (True, False),
    "queries": tuple(NORMS),
    "kind": ("RMSNorm", "LayerNorm"),
    "rotated": (0.5, 1.0),
    "interleaved": (False, True),
    "groups": (8, 2),  # of keys and values
    **latent_runs.layout_axes(RECOMPUTE),
}


def is_valid(row):
    own = max(row["groups"] // row["tensor"], 1)
    return (latent_runs.is_valid(row) and own % context_runs.EXCHANGED.get(row["way"], row["context"]) == 0
            and (row["queries"] != "all" or row["tensor"] == 1 or row["kind"] == "RMSNorm"))


def model(row):
    norms = {"qk_layernorm": False, "qk_layernorm_full_width": False, "pre_layernorm": row["before"],
             "post_self_attn_layernorm": row["behind_attention"], "post_mlp_layernorm": row["behind_mlp"], **NORMS[row["queries"]]}
    return [*SIZES, *(switch(name, value) for name, value in norms.items()), switch("rotary_interleaved", row["interleaved"]),
            f"model.normalization={row['kind']}", f"model.rotary_percent={row['rotated']}",
            f"model.num_query_groups={row['groups']}", *latent_runs.training(row)]


if __name__ == "__main__":
    run_check(latent_runs.checks(AXES, is_valid, model, RECOMPUTE, "a2a", *SIZES, "model.num_query_groups=4"))
