#!/usr/bin/env python3
"""Trains a small recipe with Mamba-2 mixers, attention and feed-forward layers, one part a layer, under many layouts. Needs only
Python.

    mamba_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make, as in delta_runs.py: one-rank draws groups, heads, patterns of layers and the axes there; experts does
so with experts in place of feed-forward layers, for which tensor-parallel ranks divide rows; same, layouts.
"""

import context_runs
import latent_runs
from compare_runs import compare_orders, run_check, strategy_settings
from hybrid_runs import compare_layouts
from tensor_runs import RECOMPUTE

SIZES = ["model.num_layers=4", "model.num_attention_heads=8", "model.kv_channels=8", "model.num_query_groups=4", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64", "model.ffn_hidden_size=96", "model.mamba_head_dim=6", "model.mamba_state_dim=5"]
AXES = {
    "groups": (4, 8),
    "heads": (8, 16),
    "layers": ("M-M*", "*MM-", "MM--"),
    **latent_runs.layout_axes(RECOMPUTE),
    "context": (1,),
    "way": ("p2p",),
}


def model(row):
    return [*SIZES, f"model.mamba_num_groups={row['groups']}", f"model.mamba_num_heads={row['heads']}",
            f"model.hybrid_layer_pattern=\"{row['layers']}\"", *latent_runs.training(row)]


def check_experts(runner):
    def is_valid(row):
        return latent_runs.is_valid(row) and (row["tensor"] == 1 or row["rows"])

    axes = {**AXES, "layers": tuple(layers.replace("-", "E") for layers in AXES["layers"])}
    latent_runs.check_rows(runner, axes, is_valid, model, RECOMPUTE)


def check_schedules(runner):
    compare_orders(runner, [*SIZES, "train.global_batch_size=8", "train.train_iters=4", "model.attention_dropout=0.1",
                            *context_runs.layout(1, "p2p", 2, True, "optim_grads_params", 2)], RECOMPUTE)


def check_saves(runner):
    def under(*axes):
        return [*SIZES, *context_runs.layout(*axes), *strategy_settings("optim_grads_params")[:2]]

    layouts = {"one rank": under(), "tensor 4 by rows": under(1, "p2p", 4, True, "optim_grads_params", 1),
               "tensor 2 by rows, FSDP 3": under(1, "p2p", 2, True, "optim_grads_params", 3)}
    compare_layouts(runner, layouts, ("one rank", "tensor 2 by rows, FSDP 3"))


if __name__ == "__main__":
    run_check({"one-rank": lambda runner: latent_runs.check_rows(runner, AXES, latent_runs.is_valid, model, RECOMPUTE),
               "experts": check_experts, "same": check_schedules, "layouts": check_saves})
