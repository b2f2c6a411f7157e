#!/usr/bin/env python3
"""Trains small recipes with Muon under many layouts. Needs only Python.

    muon_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  strategies, groups of data-parallel ranks, stages of a pipeline, slices of sequences, ranks with other experts
              (EXPERTS=1), ranks with parts of matrices by each mode that orthogonalises them whole, microbatches, recomputation; compared with one rank: losses of 5 steps, and gradients of the first, within 1e-5
              relative, the last losses within 1e-4. Each pair of values occurs in a row; SEED=n (1 by default) draws the
              rows. Some of them run unless SHARDC_LONG=1.
    narrow    Muon, lion, sgd, moments in bf16 and frozen layers in bf16, fp16 and fp8 by each recipe, on two ranks under FSDP and with parts of
              matrices; compared with one rank: losses of 4 steps within 1e-2; Muon in fp16 is refused. Some of them unless SHARDC_LONG=1
    layouts   saved under one layout, loaded under another, in both formats: weights, momenta and moments to the bit
    changed   a run of AdamW continues with Muon, and one of Muon with AdamW: the first loss is that of the weights
"""

import os
import random
import subprocess
import sys
import tempfile

from compare_runs import FULL, LONG, STRATEGIES, close, run_check, strategy_settings
from hybrid_runs import batch, compare, compare_layouts, layout, under, with_gradients
from matrix import name_of, table

ROWS = 4  # of the table, unless all run
MICRO_BATCH = 2
EXPERTS = os.environ.get("EXPERTS") == "1"
MUON = ["optimizer.optimizer=muon", "optimizer.lr=2e-3", "optimizer.muon_fp32_matmul_prec=highest",
        "optimizer.muon_extra_scale_factor=0.2", "model.num_layers=4"]
SIZES = ["model.vocab_size=251", "model.make_vocab_size_divisible_by=64"]  # padded alike for one rank and two
KINDS = {"plain": [], "nesterov": ["optimizer.muon_nesterov=true", "optimizer.muon_coefficient_type=polar_express", "optimizer.muon_split_fc1=true"],
         "whole": ["optimizer.muon_split_qkv=false", "optimizer.muon_scalar_optimizer=lion", "optimizer.weight_decay=0.1"]}
AXES = {
    "kind": tuple(KINDS),
    "strategy": STRATEGIES,
    "data": (1, 2, 4),
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),
    "stages": (1, 2),
    "slices": (1, 2),
    "experts": (1, 2) if EXPERTS else (1,),
    "parts": ("whole", "duplicated", "distributed"),
    "microbatches": (1, 3),
    "recompute": ("none", "full"),
}


def tensor_ranks(row):
    return 1 if row.get("parts", "whole") == "whole" else 2


def is_valid(row):
    """Whether no rule refuses the values of the row that are already chosen, and it has at most 8 ranks."""
    if tensor_ranks(row) * row.get("data", 1) * row.get("stages", 1) * row.get("slices", 1) > 8:
        return False
    if tensor_ranks(row) > 1 and row.get("experts", 1) > 1:
        return False
    if row.get("instances", 1) > 1 and (row.get("data", 2) < 2 or row.get("strategy") == "no_shard"):
        return False
    if row.get("experts", 1) > row.get("data", 4) * row.get("slices", 2) or row.get("experts", 1) > 1 < row.get("instances", 1):
        return False
    if row.get("stages", 1) > 1 and row.get("strategy") in STRATEGIES[2:]:
        return False
    return row.get("outer", "no_shard") != "optim" or \
        (row.get("instances", 2) > 1 and row.get("strategy") == "optim_grads_params")


def of_row(row):
    tensor = tensor_ranks(row)
    ranks = row["data"] * row["stages"] * row["slices"] * tensor
    return [*layout(row["strategy"], ranks, row["instances"], row["outer"]),
            f"model.pipeline_model_parallel_size={row['stages']}", f"model.context_parallel_size={row['slices']}",
            *([f"model.expert_model_parallel_size={row['experts']}"] if EXPERTS else []),
            f"model.tensor_model_parallel_size={tensor}", f"model.sequence_parallel={str(tensor > 1).lower()}",
            *([f"optimizer.muon_tp_mode={row['parts']}"] if tensor > 1 else []),
            *(FULL if row["recompute"] == "full" else [])]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS, 2000)
    for row in rows:
        samples = [*MUON, *SIZES, *KINDS[row["kind"]], *batch(MICRO_BATCH * row["data"] * row["microbatches"])]
        expected = with_gradients(runner, *samples, *layout("no_shard", 1))
        found = with_gradients(runner, *samples, *of_row(row))
        compare(name_of(row), (found[0][:1], found[1]), (expected[0][:1], expected[1]))
        close(f"{name_of(row)}: 5 steps", found[0], expected[0], tolerance=1e-4)
    print(f"{len(rows)} rows")
    if not EXPERTS:
        check_few_keys(runner)
        check_few_matrices(runner)


def check_few_matrices(runner):
    """Ranks have parts of a matrix, since there are fewer matrices than ranks."""
    sizes = [*MUON, *SIZES, "model.num_layers=1", *batch(8 * MICRO_BATCH)]
    expected = runner.run(*sizes, *layout("no_shard", 1))
    for strategy in ("optim", "optim_grads"):
        close(f"8 ranks under {strategy}", runner.run(*sizes, *layout(strategy, 8)), expected, tolerance=1e-5)


def check_few_keys(runner):
    """Ranks have parts of the only group of queries, keys and values."""
    sizes = [*MUON, *SIZES, "model.num_query_groups=1", "optimizer.muon_extra_scale_factor=2", *batch(MICRO_BATCH)]
    expected = runner.run(*sizes, *layout("no_shard", 1))
    for mode in ("duplicated", "distributed"):
        found = runner.run(*sizes, *layout("no_shard", 2), "model.tensor_model_parallel_size=2", f"optimizer.muon_tp_mode={mode}")
        close(f"one group of keys, {mode}", found, expected, tolerance=1e-5)


TYPES = {"bf16": ["mixed_precision=bf16_mixed"], "fp16": ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=1024"],
         **{recipe: ["mixed_precision=bf16_mixed", "mixed_precision.fp8=hybrid", f"mixed_precision.fp8_recipe={recipe}"]
            for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8")}}
UPDATES = {"muon": ["optimizer.optimizer=muon", "optimizer.lr=2e-3", "optimizer.muon_extra_scale_factor=0.2"],
           "lion": ["optimizer.optimizer=lion", "optimizer.lr=1e-4"], "sgd": ["optimizer.optimizer=sgd", "optimizer.lr=1e-2"],
           "moments": ["optimizer.use_precision_aware_optimizer=true", "optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"],
           "frozen": ['model.freeze=["embedding", "layers.0", "layers.1.qkv"]', "model.share_embeddings_and_output_weights=false"]}


def check_narrow(runner):
    pairs = [(update, kind) for update in UPDATES for kind in TYPES]
    if not LONG:  # each of both once at least
        pairs = [(update, list(TYPES)[(i + j) % len(TYPES)]) for i, update in enumerate(UPDATES) for j in range(2)][:6]
    sizes = ["model.num_layers=2", "model.hidden_size=128", "model.ffn_hidden_size=256", *batch(4, 4)]
    for update, kind in pairs:
        settings, name = [*sizes, *TYPES[kind], *UPDATES[update]], f"{update} in {kind}"
        sharded = "optim" if update == "lion" else "optim_grads_params"  # FSDP refuses it by rule fsdp-optimizer
        ranks = {"one": layout("optim", 1), "sharded": layout(sharded, 2),
                 "parts": [*layout("optim", 2), "model.tensor_model_parallel_size=2", "model.sequence_parallel=true",
                           *(["optimizer.muon_tp_mode=distributed"] if update == "muon" else [])]}
        if (update, kind) == ("muon", "fp16"):
            print(f"{name}: refused by {refusal(runner, *settings, *ranks['one'])}")
            continue
        expected = runner.run_plan(*settings, *ranks["one"])
        for way in ("sharded", "parts"):
            close(f"{name}, {way}", runner.run_plan(*settings, *ranks[way]), expected, tolerance=1e-2)


def refusal(runner, *settings):
    done = subprocess.run(["shardc", "check", runner.recipe, *runner.arguments(settings)], capture_output=True, text=True)
    if done.returncode == 0 or "[muon-fp16]" not in done.stderr:
        sys.exit(f"not refused: {done.stderr}")
    return "muon-fp16"


def check_layouts(runner):
    runner.settings = [*runner.settings, *MUON]
    layouts = {"one rank": under("optim_grads_params", 1), "FSDP on 3": under("optim_grads_params", 3),
               "2 groups of 2, divided": under("optim_grads_params", 4, groups=2, outer="optim"),
               "torch_dist": [*layout("optim", 3), "checkpoint.ckpt_format=torch_dist"],
               "torch_dist on 2": [*layout("optim", 2), "checkpoint.ckpt_format=torch_dist"]}
    compare_layouts(runner, layouts, ("FSDP on 3", "torch_dist"), {}, ["checkpoint.convert_on_load=true"])


def check_changed(runner):
    adam = ["model.num_layers=4", "scheduler.lr_decay_iters=20"]
    ways = {"adam": adam, "muon": [*MUON, *adam]}
    for strategy in ("optim", "optim_grads_params"):
        own = [*batch(8, 3), *strategy_settings(strategy), "cluster.gpus_per_node=2", f"train.micro_batch_size={MICRO_BATCH}"]
        for first, second in (("adam", "muon"), ("muon", "adam")):
            with tempfile.TemporaryDirectory() as folder:
                whole = runner.run(*own, *ways[first])
                runner.run(*own, *ways[first], f'checkpoint.save="{folder}/c"', "train.exit_interval=2")
                rest = runner.run(*own, *ways[second], f'checkpoint.load="{folder}/c"')
                if abs(rest[0][0] / whole[2][0] - 1) > 1e-6:
                    sys.exit(f"{strategy}, {first} to {second}: the loss is {rest[0][0]}, that of the weights {whole[2][0]}")
                print(f"{strategy}, {first} to {second}: the weights are kept")


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "narrow": check_narrow, "layouts": check_layouts, "changed": check_changed})
