#!/usr/bin/env python3
"""Trains adapters of small recipes under many layouts. Needs only Python.

    peft_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  sets of adapted layers, tensor-parallel sizes, sequence parallelism, slices of sequences, strategies, groups of
              data-parallel ranks, microbatches, recomputation; compared with one rank: losses of 5 steps, and gradients of the first,
              within 1e-5 relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the rows. Some of them
              run unless SHARDC_LONG=1.
    stages    pipelines of each schedule and one rank, likewise
    experts   the same with experts: ranks with other experts and with parts of them
    nested    weights in 4 bits of a base, whose scales depend on the whole weight: tensor-parallel ranks, stages, FSDP, and one rank,
              likewise; a run that continues from a save, to the bit
    begin     adapters' first values are the same bits under each layout
    base      a run takes its base from a checkpoint, saves adapters alone, goes on to the bit, and refuses another base with the
              names of its tensors, and another scale of adapters
"""

import os
import pathlib
import random
import subprocess
import sys
import tempfile

import tensor_runs
from compare_runs import LONG, STRATEGIES, equal, run_check, strategy_settings
from hybrid_runs import compare, with_gradients
from matrix import name_of, table
from param_runs import told
from pipeline_runs import SCHEDULES
from resume_runs import loads, saves

ROWS = 6  # of the table, unless all run
LORA = ["peft.scheme=lora", "peft.rank=4", "peft.alpha=8", "optimizer.lr=0.005", "model.init_method_std=0.06",
        "model.hidden_dropout=0.0"]
ALL = 'peft.targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]'
FORMS = {
    "joint": [],
    "parts": [ALL],
    "some": ['peft.targets=["q_proj", "v_proj", "linear_fc1_up", "*.down_proj"]', "peft.rslora=true",
             'peft.modules_to_save=["embed_tokens", "norm"]'],
    "layer": ['peft.targets=["*.layers.1.*"]', 'peft.exclude=["linear_q", "linear_k", "linear_v", "linear_fc1_gate", "linear_fc1_up"]'],
    "quantized": [ALL, "peft.quantize=nf4", "model.hidden_size=256", "model.ffn_hidden_size=256"],
    "dora": ["peft.scheme=dora"],
    "dora, some": ["peft.scheme=dora", 'peft.targets=["q_proj", "v_proj", "o_proj", "linear_fc1_up", "*.down_proj"]', "peft.rslora=true"],
    "dora, quantized": [ALL, "peft.scheme=dora", "peft.quantize=nf4", "model.hidden_size=256", "model.ffn_hidden_size=256"],
    "dropout": ['peft.targets=["q_proj", "k_proj", "v_proj", "up_proj"]', "peft.dropout=0.3"],
}
AXES = {
    "form": tuple(FORMS),
    **{axis: tensor_runs.AXES[axis] for axis in ("rows", "data", "instances", "outer", "microbatches", "recompute")},
    "tensor": (1, 2, 4),
    "context": (1, 2),
    "strategy": (*STRATEGIES, "torch_fsdp2"),
}


def is_valid(row):
    return tensor_runs.is_valid({**row, "pieces": 0, "tied": False}) and not (row.get("rows") and row.get("tensor") == 1) and \
        row.get("tensor", 1) * row.get("context", 1) * row.get("data", 1) <= 16


def model(row):
    return [*tensor_runs.model({"groups": 4, "per_token": False, "tied": False, **row}), *LORA, *FORMS[row["form"]]]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS, 2000)
    for row in rows:
        expected = with_gradients(runner, *model(row), *tensor_runs.layout())
        own = tensor_runs.layout(*(row[axis] for axis in ("tensor", "rows", "strategy", "data", "instances", "outer")))
        ranks = row["tensor"] * row["data"] * row["context"]
        own += [f"model.context_parallel_size={row['context']}", f"cluster.gpus_per_node={ranks}"]
        compare(name_of(row), with_gradients(runner, *model(row), *own, *tensor_runs.RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


def check_stages(runner):
    for form in ("parts", "dora, some"):
        check_stages_of(runner, form)


def check_stages_of(runner, form):
    sizes = model({"form": form, "data": 1, "microbatches": 4, "tied": False}) + ["model.num_layers=4"]
    expected = with_gradients(runner, *sizes, *tensor_runs.layout())
    for schedule in SCHEDULES:
        own = ["cluster.gpus_per_node=2", "model.pipeline_model_parallel_size=2", *SCHEDULES[schedule]]
        compare(f"2 stages, {schedule}", with_gradients(runner, *sizes, *tensor_runs.layout(), *own), expected)


def check_experts(runner):
    sizes = [*LORA, "train.micro_batch_size=2", "train.global_batch_size=8", "train.train_iters=5",
             "model.share_embeddings_and_output_weights=false"]
    expected = with_gradients(runner, *sizes, "cluster.gpus_per_node=1")
    sequence = ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"]
    ways = {
        "experts 2": ["cluster.gpus_per_node=2", "model.expert_model_parallel_size=2"],
        "experts 2, FSDP 2": ["cluster.gpus_per_node=4", "model.expert_model_parallel_size=2",
                              *strategy_settings("optim_grads_params")],
        "parts 2": ["cluster.gpus_per_node=2", *sequence, "model.expert_tensor_parallel_size=2"],
        "experts 2, parts 2": ["cluster.gpus_per_node=4", *sequence, "model.expert_model_parallel_size=2",
                               "model.expert_tensor_parallel_size=2"],
    }
    for name, settings in ways.items():
        compare(name, with_gradients(runner, *sizes, *settings), expected)


def check_nested(runner):
    sizes = [*model({"form": "parts", "data": 1, "microbatches": 4, "tied": False}), "model.hidden_size=512", "model.ffn_hidden_size=1024",
             "model.kv_channels=128"]
    with tempfile.TemporaryDirectory() as base:
        saved = [each for each in sizes if not each.startswith("peft.")]
        runner.run_plan(*saved, *tensor_runs.layout(1, False, "optim_grads_params", 2), "train.train_iters=1", *saves(base, 1))
        sizes += [f'checkpoint.pretrained_checkpoint="{base}"', "dataset.kind=synthetic"]
        double = [*sizes, "peft.quantize=nf4_double"]
        expected = with_gradients(runner, *double, *tensor_runs.layout())
        if with_gradients(runner, *sizes, "peft.quantize=nf4", *tensor_runs.layout())[0][0] == expected[0][0]:
            sys.exit("scales in 8 bits have the loss of those in fp32")
        fsdp = tensor_runs.layout(1, False, "optim_grads_params", 2)
        stages = [*tensor_runs.layout(), "cluster.gpus_per_node=2", "model.pipeline_model_parallel_size=2"]
        for name, own in {"tensor 2 by rows": tensor_runs.layout(2, True), "2 stages": stages, "FSDP 2": fsdp}.items():
            compare(name, with_gradients(runner, *double, *own), expected)
        with tempfile.TemporaryDirectory() as tuned:
            whole = runner.run_plan(*double, *fsdp, *saves(tuned, 2))
            equal("continued", whole[2:], runner.run_plan(*double, *fsdp, *loads(tuned), "checkpoint.ckpt_step=2"))


def check_begin(runner):
    sizes = [*model({"form": "parts", "data": 1, "microbatches": 4, "tied": False}), "train.train_iters=1"]
    layouts = {"one rank": tensor_runs.layout(), "tensor 4": tensor_runs.layout(4, True),
               "FSDP 2": tensor_runs.layout(1, False, "optim_grads_params", 2)}
    first = None
    for name, own in layouts.items():
        with tempfile.TemporaryDirectory() as folder:
            # Without a learning rate, a save has what the run began with.
            runner.run_plan(*sizes, *own, *strategy_settings("optim_grads_params")[:2], "optimizer.lr=0", "optimizer.min_lr=0",
                            *saves(folder, 1), "checkpoint.save_optim=false")
            done = subprocess.run(["shardc", "ckpt", "diff", "--tensors-only", first or folder, folder], capture_output=True,
                                  text=True, check=False)
            if first is not None and done.returncode != 0:
                sys.exit(f"{name}: {done.stdout}{done.stderr}")
            if first is None:
                first = tempfile.mkdtemp()
                subprocess.run(["cp", "-r", f"{folder}/.", first], check=True)
            print(f"{name}: the same first values")
    subprocess.run(["rm", "-r", first], check=True)


def check_base(runner):
    sizes = ["train.micro_batch_size=2", "train.global_batch_size=4", "cluster.gpus_per_node=2",
             "model.share_embeddings_and_output_weights=false", "scheduler.lr_decay_iters=10", "scheduler.lr_warmup_iters=0"]
    ways = {
        "optim": ("optim", [], []),
        "optim_grads_params": ("optim_grads_params", ["mixed_precision=bf16_mixed"], []),
        "4 bits": ("optim_grads_params", ["model.ffn_hidden_size=192"], ["peft.quantize=nf4"]),
        "dora": ("optim_grads_params", ["mixed_precision=bf16_mixed"], ["peft.scheme=dora"]),
    }
    for way, (strategy, own, adapters) in ways.items():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            settings = [*sizes, *strategy_settings(strategy), *own]
            runner.run_plan(*settings, "train.train_iters=2", *saves(folder / "base", 2))
            runner.run_plan(*settings, "train.train_iters=3", *saves(folder / "other", 3))
            tuned = [*settings, "dataset.kind=synthetic", *LORA, ALL, *adapters, f'checkpoint.pretrained_checkpoint="{folder / "base"}"', "train.train_iters=4"]
            whole = runner.run_plan(*tuned, *saves(folder / "tuned", 2))
            plain = runner.run_plan(*settings, *LORA, ALL, *adapters, "train.train_iters=4")
            if plain[0] == whole[0]:
                sys.exit(f"{way}: the base is not that of the checkpoint")
            kept = set(told("inspect", folder / "tuned"))
            if not any("adapter.linear_in" in each for each in kept) or any("embedding" in each for each in kept):
                sys.exit(f"{way}: saved are {kept}")
            resumed = runner.run_plan(*tuned, *loads(folder / "tuned"), "checkpoint.ckpt_step=2")
            equal(f"{way}, continued", whole[2:], resumed)
            wrong = [*tuned[:-2], f'checkpoint.pretrained_checkpoint="{folder / "other"}"', "train.train_iters=4"]
            done = subprocess.run(["shardc", "run", runner.recipe, *runner.arguments([*wrong, *loads(folder / "tuned")])],
                                  capture_output=True, text=True, check=False)
            if done.returncode == 0 or "has other weights than" not in done.stderr or "linear_qkv.weight" not in done.stderr:
                sys.exit(f"{way}: another base gives {done.returncode}: {done.stderr}")
            for own, words in (("peft.alpha=16", "peft.alpha: 8 in the checkpoint, 16 in the recipe"),
                               ("peft.rslora=true", "peft.rslora: false in the checkpoint, true in the recipe"),
                               *[("peft.scheme=lora", "peft.scheme: dora in the checkpoint, lora in the recipe")] * (way == "dora")):
                done = subprocess.run(["shardc", "run", runner.recipe, *runner.arguments([*tuned, *loads(folder / "tuned"), own])],
                                      capture_output=True, text=True, check=False)
                if done.returncode != 1 or words not in done.stderr:
                    sys.exit(f"{way}: {own} gives {done.returncode}: {done.stderr}")
            print(f"{way}: another base and another scale are refused")


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "stages": check_stages, "experts": check_experts, "nested": check_nested, "begin": check_begin,
               "base": check_base})
