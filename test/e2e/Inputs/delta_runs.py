#!/usr/bin/env python3
"""Trains a small recipe with gated delta nets and gated attention under many layouts. Needs only Python.

    delta_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  value heads as many as key heads and twice as many, widths of convolutions, layers of delta nets, tensor-parallel sizes,
              sequence parallelism, stages and schedules, strategies, groups of data-parallel ranks, microbatches, recomputation,
              documents, dropout; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5 relative. Rows are
              drawn so that each has as many new pairs of values as possible; SEED=n (1 by default) draws them. Some of them run
              unless SHARDC_LONG=1.
    same      any schedule, each kind of recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
"""

import context_runs
import latent_runs
from compare_runs import compare_orders, run_check, strategy_settings
from hybrid_runs import compare_layouts
from tensor_runs import RECOMPUTE

SIZES = ["model.num_layers=4", "model.num_attention_heads=8", "model.kv_channels=8", "model.num_query_groups=4", "model.vocab_size=251",
         "model.make_vocab_size_divisible_by=64", "model.num_moe_experts=none", "model.moe_shared_expert_intermediate_size=none",
         "model.moe_shared_expert_gate=false", "model.ffn_hidden_size=96", "model.linear_num_key_heads=4", "model.linear_key_head_dim=6",
         "model.linear_value_head_dim=8"]
AXES = {
    "heads": (4, 8),  # of values
    "taps": (2, 4),
    "layers": ("[4]", "[1,0,1,0]", "[0,1,1,1]"),
    **latent_runs.layout_axes(RECOMPUTE),
    "context": (1,),
    "way": ("p2p",),
}


def model(row):
    return [*SIZES, f"model.linear_num_value_heads={row['heads']}", f"model.linear_conv_kernel_dim={row['taps']}",
            f"model.linear_attention_freq={row['layers']}", *latent_runs.training(row)]


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
               "same": check_schedules, "layouts": check_saves})
