#!/usr/bin/env python3
"""Trains a small recipe with soft caps, scaled embeddings, factors, norms of queries and keys before or after their rotation, and
windows with positions of their own under many layouts. Needs only Python.

    cap_runs.py CHECK RECIPE [--set path=value ...]

CHECK is one of:
    one-rank  Compares losses of 5 steps, and gradients of the first, with those of one rank, within 1e-5 relative (2e-5
              for the weights of head norms). Each test row chooses a value of every axis: soft caps of scores, logits or both; scaled embeddings; factors on
              embeddings, branches and logits; norms of queries and keys; windows of every second layer, with the rotary
              base of the other layers, with another one beside interpolated positions or YaRN, or as the only rotated
              layers; the number of key/value groups; and the axes of layouts (latent_runs.py). Rows are drawn so that
              each has as many new pairs of values as possible; SEED=n (1 by default) draws them. Some of them run
              unless SHARDC_LONG=1.
    same      Every schedule, each kind of recomputation, and one process per rank give bitwise equal results.
    layouts   Saves under one layout and loads under another: weights and moments are bitwise equal.
"""

import context_runs
import latent_runs
from compare_runs import run_check
from latent_runs import switch
from tensor_runs import RECOMPUTE

HEADS = 8
SIZES = ["model.num_layers=4", f"model.num_attention_heads={HEADS}", "model.kv_channels=8", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
CAPS = {"none": (), "scores": ("attn",), "logits": ("final",), "both": ("attn", "final")}
WINDOWS = {"none": ["model.window_size=none", "model.window_attn_skip_freq=none"], "one base": [],
           "two bases": ["model.window_rotary_base=100.0", "model.seq_len_interpolation_factor=4.0"],
           "yarn": ["model.window_rotary_base=100.0", "model.position_embedding_type=yarn", "model.yarn_rotary_scaling_factor=4.0",
                    "model.yarn_original_max_position_embeddings=16"],
           "rotated": ["model.no_rope_freq=[2]"]}
FACTORS = ["model.embedding_multiplier=3.0", "model.residual_multiplier=0.4", "model.logits_multiplier=0.5"]
NORMS = {"none": [], "before": ["model.qk_layernorm=true"], "after": ["model.qk_layernorm=true", "model.qk_layernorm_after_rotation=true"]}
AXES = {
    "caps": tuple(CAPS),
    "scaled": (True, False),
    "factors": (True, False),
    "norms": tuple(NORMS),
    "window": tuple(WINDOWS),
    "groups": (8, 2),  # of keys and values
    **latent_runs.layout_axes(RECOMPUTE),
}


def is_valid(row):
    own = max(row["groups"] // row["tensor"], 1)
    return latent_runs.is_valid(row) and own % context_runs.EXCHANGED.get(row["way"], row["context"]) == 0


def model(row):
    off = [f"model.{part}_logit_softcapping=none" for part in CAPS["both"] if part not in CAPS[row["caps"]]]
    return [*SIZES, *off, switch("scale_embeddings", row["scaled"]), *WINDOWS[row["window"]], *NORMS[row["norms"]],
            *(FACTORS if row["factors"] else []), f"model.num_query_groups={row['groups']}", *latent_runs.training(row)]


if __name__ == "__main__":
    run_check(latent_runs.checks(AXES, is_valid, model, RECOMPUTE, "p2p", *SIZES, "model.num_query_groups=4"))
