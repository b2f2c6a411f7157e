#!/usr/bin/env python3
"""Trains small recipes of which a part is frozen in every kind of layout. Needs only Python.

    frozen_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  sets of frozen parameters, optimizers and the types of their moments, stages and their schedules, microbatches, strategies,
              groups of data-parallel ranks with and without state sharded between them, tensor-, context- and expert-parallel ranks and
              parts of experts, tied tables, recomputation, evaluations; compared with one rank: losses and norms of 5 steps, and gradients of the
              first, within 1e-5 relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the rows. Some of them
              run unless SHARDC_LONG=1. With Muon, losses after the first step within 1e-4.
    narrow    in bf16, fp16 and fp8 by each recipe: strategies, frozen weights that are kept whole, and any schedule to the bit; weights
              gathered in 8 bits, and stages, within what sums of such numbers differ by
    layouts   saved under one layout, loaded under another, with frozen weights kept whole or not: the losses that follow
"""

import os
import random
import sys
import tempfile

import expert_runs
from compare_runs import FULL, LONG, STRATEGIES, close, equal, run_check, strategy_settings
from hybrid_runs import SAVED, batch, compare, with_gradients
from matrix import name_of, table
from pipeline_runs import SCHEDULES, SELECTIVE
from tensor_runs import SIZES

ROWS = 5  # of the table, unless all run
DRAWN = 3000  # rows that the table is chosen from
STEPS, LAYERS, MICRO_BATCH = 5, 6, 1
MUON = ["optimizer.optimizer=muon", "optimizer.lr=2e-3", "optimizer.muon_fp32_matmul_prec=highest",
        "optimizer.muon_extra_scale_factor=0.2"]
FROZEN = {  # {third}: the first layer behind the lower third, and so on; counts of layers may differ
    "nothing": [],
    "the lower third": ["embedding", "layers.0-{below_third}"],
    "the lower half": ["embedding", "layers.0-{below_half}"],
    "all but the head and its norm": ["embedding", "layers"],
    "the middle third": ["layers.{third}-{below_two}"],
    "the upper third": ["layers.{two}-{last}", "head"],
    "all but the embedding": ["layers", "head", "norm", "bias"],
    "all but the norms": ["embedding", "positions", "head", "qkv", "projection", "feed_forward", "experts", "shared_experts", "router", "bias"],
    "kinds of some layers": ["layers.1.qkv", "layers.0.feed_forward", "layers.0-{below_two}.experts", "layers.{two}.norm"],
    "every second layer": ["layers.0", "layers.2", "layers.4"],
}
AWARE = "optimizer.use_precision_aware_optimizer=true"
OPTIMIZERS = {
    "adam": [],
    "moments in bf16": [AWARE, "optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"],
    "sgd": ["optimizer.optimizer=sgd", "optimizer.lr=0.05"],
    "sgd with momentum": ["optimizer.optimizer=sgd", "optimizer.lr=0.05", "optimizer.sgd_momentum=0.9"],
    "lion": ["optimizer.optimizer=lion", "optimizer.lr=1e-4"],
    "muon": MUON,
    "muon with nesterov": [*MUON, "optimizer.muon_nesterov=true", "optimizer.muon_split_qkv=false", "optimizer.muon_tp_mode=distributed"],
}
RECOMPUTE = {"none": [], "selective": SELECTIVE, "full": FULL}
AXES = {
    "frozen": tuple(FROZEN),
    "optimizer": tuple(OPTIMIZERS),
    "stages": (1, 2, 3),
    "schedule": ("1f1b", "interleaved", "zero_bubble"),
    "microbatches": (1, 2, 3, 6),
    "strategy": tuple(STRATEGIES),
    "data": (1, 2, 4),
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),
    "tensor": (1, 2),
    "context": (1, 2),
    "experts": (1, 2),
    "parts": (1, 2),
    "tied": (False, True),
    "kept": (False, True),  # frozen weights, whole
    "recompute": tuple(RECOMPUTE),
    "evaluates": (False, True),
}


def is_valid(row):
    """Whether no rule refuses the values of the row that are already chosen."""
    ranks = row["data"] * row["tensor"] * row["context"]
    if ranks * row["stages"] > 8 or ranks % (row["experts"] * row["parts"]):
        return False
    if row["instances"] > 1 and (row["data"] < 2 or row["strategy"] == "no_shard"):
        return False
    if row["instances"] > 1 and row["data"] * row["tensor"] * row["context"] // row["instances"] % (row["experts"] * row["parts"]):
        return False
    if row["outer"] != "no_shard" and (row["instances"] == 1 or row["strategy"] != "optim_grads_params"):
        return False
    if row["schedule"] != "1f1b" and row["stages"] == 1:
        return False
    if row["schedule"] == "interleaved" and row["microbatches"] > row["stages"] and row["microbatches"] % row["stages"]:
        return False
    sharded = row["strategy"] not in ("no_shard", "optim")
    return not (row["optimizer"] == "moments in bf16" and row["strategy"] == "no_shard" or row["optimizer"] == "lion" and sharded)


def layout(row, has_experts):
    ranks = row["stages"] * row["data"] * row["tensor"] * row["context"]
    return [*strategy_settings(row["strategy"]), *SCHEDULES[row["schedule"]], f"cluster.gpus_per_node={ranks}",
            f"model.pipeline_model_parallel_size={row['stages']}", f"model.tensor_model_parallel_size={row['tensor']}",
            f"model.sequence_parallel={str(row['tensor'] > 1).lower()}", f"model.context_parallel_size={row['context']}",
            f"ddp.num_distributed_optimizer_instances={row['instances']}", f"ddp.outer_dp_sharding_strategy={row['outer']}",
            *["ddp.keep_frozen=always"] * row["kept"],
            *[f"model.expert_model_parallel_size={row['experts']}", f"model.expert_tensor_parallel_size={row['parts']}"] * has_experts]


def freezes(entries, layers):
    if not entries:
        return []
    third = layers // 3
    places = {"third": third, "below_third": third - 1, "below_half": layers // 2 - 1, "two": 2 * third, "below_two": 2 * third - 1,
              "last": layers - 1}
    return ["model.freeze=[" + ", ".join(f'"{entry.format(**places)}"' for entry in entries) + "]"]


def model(row):
    layers = 2 * LAYERS if row["schedule"] == "interleaved" else LAYERS
    settings = [*SIZES, f"model.num_layers={layers}", f"train.train_iters={STEPS}", f"train.micro_batch_size={MICRO_BATCH}",
                f"train.global_batch_size={MICRO_BATCH * row['microbatches'] * row['data']}", *freezes(FROZEN[row["frozen"]], layers),
                f"model.share_embeddings_and_output_weights={str(row['tied']).lower()}", *OPTIMIZERS[row["optimizer"]]]
    return settings + (["validation.eval_interval=2", "validation.eval_iters=3"] if row["evaluates"] else [])


def has_experts(runner):
    return "num_moe_experts" in open(runner.recipe, encoding="utf-8").read()


def on_one_rank(row):
    """Moments in 16 bits are those of the distributed optimizer."""
    aware = row["optimizer"] == "moments in bf16"
    return ["cluster.gpus_per_node=1", *strategy_settings("optim" if aware else "no_shard")]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    with_experts = has_experts(runner)
    axes = AXES if with_experts else {**AXES, "experts": (1,), "parts": (1,)}
    rows = table(axes, is_valid, draw, int(os.environ.get("ROWS", "0")) or (None if LONG else ROWS), DRAWN)
    for row in rows:
        expected = with_gradients(runner, *model(row), *on_one_rank(row))
        found = with_gradients(runner, *model(row), *layout(row, with_experts), *RECOMPUTE[row["recompute"]])
        if row["optimizer"].startswith("muon"):
            close(f"{name_of(row)}: 5 steps", found[0], expected[0], tolerance=1e-4)
            found, expected = ((steps[:1], gradients) for steps, gradients in (found, expected))
        compare(name_of(row), found, expected)
    print(f"{len(rows)} rows")


NARROW = {
    "bf16": ["mixed_precision=bf16_mixed"],
    "fp16": ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=1024"],
    **{recipe: ["mixed_precision=bf16_mixed", "mixed_precision.fp8=hybrid", f"mixed_precision.fp8_recipe={recipe}"]
       for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8")},
}
KEPT = "ddp.keep_frozen=always"
SOME = ["embedding", "layers.0", "layers.1.qkv", "layers.2.feed_forward"]


def check_narrow(runner):
    sizes = ["model.num_layers=4", "model.hidden_size=128", "model.ffn_hidden_size=256", "train.micro_batch_size=2", "train.train_iters=4",
             "train.global_batch_size=8", "model.share_embeddings_and_output_weights=false", *freezes(SOME, 4)]
    fsdp = strategy_settings("optim_grads_params")
    for name in runner.with_kernels(NARROW if LONG else ("fp16", "delayed", "mxfp8")):
        settings = [*sizes, *NARROW[name]]
        one_microbatch = [*settings, "cluster.gpus_per_node=4"]
        expected = runner.run_plan(*one_microbatch, *strategy_settings("optim"))
        equal(f"{name}, divided", expected, runner.run_plan(*one_microbatch, *fsdp))
        equal(f"{name}, kept", expected, runner.run_plan(*one_microbatch, *fsdp, KEPT))
        if "all_gather %ws.layers.0 " in runner.plan_text():
            sys.exit(f"{name}: what is kept is gathered")
        equal(f"{name}, kept, seed 1", expected, runner.run_plan(*one_microbatch, *fsdp, KEPT, options=["--seed-schedule=1"]))
        stages = [*settings, *SCHEDULES["zero_bubble"], "model.pipeline_model_parallel_size=2", "cluster.gpus_per_node=4", *fsdp]
        close(f"{name}, stages", runner.run_plan(*stages), expected, tolerance=1e-2)
        if name in ("delayed", "tensorwise"):
            close(f"{name}, weights in 8 bits", runner.run_plan(*one_microbatch, *fsdp, "ddp.fp8_param_gather=true"), expected, tolerance=1e-2)


def check_layouts(runner):
    sizes = [*batch(8, steps=SAVED + 2), "model.num_layers=4", "train.micro_batch_size=1", *freezes(SOME, 4),
             "model.share_embeddings_and_output_weights=false", "mixed_precision=bf16_mixed"]
    fsdp = strategy_settings("optim_grads_params")
    layouts = {"FSDP on 2": [*fsdp, "cluster.gpus_per_node=2"], "kept on 4": [*fsdp, "cluster.gpus_per_node=4", KEPT],
               "2 stages of 2": [*fsdp, *SCHEDULES["interleaved"], "model.pipeline_model_parallel_size=2", "cluster.gpus_per_node=4"],
               "tensor 2": [*fsdp, "model.tensor_model_parallel_size=2", "cluster.gpus_per_node=2"]}
    for source in runner.in_turn(("2 stages of 2", "kept on 4")):
        saved = [*sizes, *layouts[source]]
        with tempfile.TemporaryDirectory() as folder:
            steps = runner.run(*saved)
            runner.run(*saved, f'checkpoint.save="{folder}/c"', f"train.exit_interval={SAVED}")
            for target, settings in layouts.items():
                rest = runner.run(*sizes, *settings, f'checkpoint.load="{folder}/c"', "checkpoint.convert_on_load=true")
                if source == target:
                    equal(f"{source} to {target}", steps[SAVED:], rest)
                else:
                    close(f"{source} to {target}", steps[SAVED:], rest, tolerance=1e-2)


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "narrow": check_narrow, "layouts": check_layouts})
