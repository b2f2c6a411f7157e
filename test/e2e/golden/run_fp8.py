#!/usr/bin/env python3
"""Trains golden cases in fp8 and compares losses and norms with PyTorch's. Needs nothing but Python.

    run_fp8.py values CASE [--variants V...] [--ranks N...] [--strategies S...] [--pipelines P...] [--tensor N] [--experts N]   PyTorch's losses and norms
    run_fp8.py resume CASE FORMAT... [--variants V...] [--pipelines P...]        a run from a checkpoint goes on to the bit
    run_fp8.py fused CASE [--variants V...] [--ranks N...] [--pipelines P...]    without the pass fuse-quantize a run is the same to the bit
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile

from run_golden import HERE, STRATEGIES, call

FP8 = ["mixed_precision=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=true", "mixed_precision.fp8=hybrid",
       "mixed_precision.fp8_recipe=tensorwise"]
VARIANTS = {
    "hybrid": [],
    "e4m3": ["mixed_precision.fp8=e4m3"],
    "bf16_wgrad": ["mixed_precision.fp8_wgrad=false"],
    "bf16_ends": ["mixed_precision.first_last_layers_bf16=true"],
    "delayed": ["mixed_precision.fp8_recipe=delayed", "mixed_precision.fp8_amax_history_len=16", "mixed_precision.fp8_amax_compute_algo=max"],
    "delayed_recent": ["mixed_precision.fp8_recipe=delayed", "mixed_precision.fp8_margin=1"],
    "blockwise": ["mixed_precision.fp8_recipe=blockwise"],
    "mxfp8": ["mixed_precision.fp8_recipe=mxfp8", "mixed_precision.fp8=e4m3", "model.hidden_size=64"],
    # The same numbers by other ways.
    "recomputed": ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
    "kept": ["ddp.keep_fp8_transpose_cache=true"],
}
VARIANTS["gathered"] = ["ddp.fp8_param_gather=true"]
VARIANTS["gathered_kept"] = [*VARIANTS["gathered"], *VARIANTS["kept"]]
VARIANTS["gathered_delayed"] = [*VARIANTS["gathered"], *VARIANTS["delayed"]]
VARIANTS["delayed_recomputed"] = [*VARIANTS["delayed"], *VARIANTS["recomputed"]]
VARIANTS["blockwise_recomputed"] = [*VARIANTS["blockwise"], *VARIANTS["recomputed"]]
VARIANTS["delayed_kept"] = [*VARIANTS["delayed"], *VARIANTS["kept"]]
VARIANTS["gathered_recomputed"] = [*VARIANTS["gathered"], *VARIANTS["recomputed"]]
VARIANTS["stored"] = ["peft.quantize=fp8"]
VARIANTS["stored_delayed"] = [*VARIANTS["stored"], *VARIANTS["delayed"]]
# Weights that are gathered or stored in fp8 are rounded once, and not to bf16 before.
SAME_AS = {"recomputed": "hybrid", "kept": "hybrid", "delayed_recomputed": "delayed", "delayed_kept": "delayed", "blockwise_recomputed": "blockwise", "gathered": "hybrid",
           "gathered_kept": "hybrid", "gathered_recomputed": "hybrid", "gathered_delayed": "delayed",
           "stored": "hybrid", "stored_delayed": "gathered_delayed"}
TWO_STAGES = "model.pipeline_model_parallel_size=2"
LAYOUT = "model.pipeline_model_parallel_layout"
PIPELINES = {
    "none": [],
    "halves": [TWO_STAGES],
    "1f1b": [TWO_STAGES, f'{LAYOUT}="Ett|tL"'],
    "zero_bubble": [TWO_STAGES, f'{LAYOUT}="Et|ttL"', "model.pipeline_schedule=zero_bubble"],
    "interleaved": [TWO_STAGES, f'{LAYOUT}="E|t|tt|L"', "model.pipeline_schedule=interleaved",
                    "model.virtual_pipeline_model_parallel_size=2"],
}
FUSED_OPS = [f"{maker}.{op}" for maker in ("rmsnorm", "add_rmsnorm", "rmsnorm_again", "layernorm", "add_layernorm",
                                               "layernorm_again", "swiglu", "swiglu_bwd", "geglu", "geglu_bwd",
                                               "squared_relu", "squared_relu_bwd")
             for op in ("amax", "quantize", "quantize_delayed", "quantize_blocks")]
SAVES = {"torch_dist": "optim", "fsdp_dtensor": "optim_grads_params"}


def train(case, settings, folder, options=()):
    """The metrics of a run's steps."""
    plan, metrics = folder / "job.plan", folder / "metrics"
    merged = {s.split("=", 1)[0]: s for s in [*FP8, *settings]}
    call("shardc", "dump-plan", f"{case}.recipe", "-o", plan, *(f"--set={s}" for s in merged.values()), *options)
    metrics.unlink(missing_ok=True)
    call("shardc-run", plan, f"--metrics={metrics}")
    return [row for row in map(json.loads, metrics.read_text().splitlines()) if "grad_norm" in row]


def expect(condition, text):
    if not condition:
        sys.exit(text)


def divided(parts, experts):
    """Options that divide layers over `parts` ranks, with sequence parallelism, and experts over `experts` ranks."""
    sizes = [f"model.tensor_model_parallel_size={parts}", "model.sequence_parallel=true"] * (parts > 1)
    return sizes + [f"model.expert_model_parallel_size={experts}"] * (experts > 1)


def check_values(case, variant, ranks, strategy, pipeline, parts, experts, whole):
    """All steps, whose mean distance from bf16 is bounded, or those alone that are compared one by one."""
    golden = json.loads((HERE / "values" / f"{case}_fp8.json").read_text())
    want = golden["variants"][variant if variant in golden["variants"] else SAME_AS[variant]]
    bf16 = want["bf16"]
    settings = [*STRATEGIES[strategy], *VARIANTS[variant], *PIPELINES[pipeline], *divided(parts, experts),
                f"cluster.gpus_per_node={ranks}", f"train.train_iters={len(bf16)}"]
    if not whole:
        bf16 = bf16[:golden["compared_steps"]]
        settings.append(f"train.exit_interval={len(bf16)}")
    with tempfile.TemporaryDirectory() as folder:
        rows = train(case, settings, pathlib.Path(folder))
    expect(len(rows) == len(bf16), f"{len(rows)} steps")
    worst = {}
    for key, allowed in want["tolerance"].items():
        pairs = list(zip((row[key] for row in rows), want[key]))[:golden["compared_steps"]]
        worst[key] = max(abs(got - value) / abs(value) for got, value in pairs)
        expect(worst[key] <= allowed, f"{case} {variant}: {key} is off by {worst[key]:.1e}, allowed {allowed:.1e}")
    apart = sum(abs(row["loss"] - value) / value for row, value in zip(rows, bf16)) / len(rows)
    if whole:
        expect(apart <= want["from_bf16"], f"{case} {variant}: losses are {apart:.1e} from bf16's, allowed {want['from_bf16']:.1e}")
    print(f"{case} {variant}, ranks {ranks}, {strategy}, pipeline {pipeline}, tensor {parts}, experts {experts}: "
          f"loss off by {worst['loss']:.1e}, norm by {worst['grad_norm']:.1e}; {apart:.1e} from bf16 over {len(rows)} steps", flush=True)
    return [row["loss"] for row in rows]


def check_resume(case, format_, variant, pipeline):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        settings = [*VARIANTS[variant], *PIPELINES[pipeline], *STRATEGIES[SAVES[format_]], f"checkpoint.ckpt_format={format_}", "cluster.gpus_per_node=2",
                    "train.train_iters=12", f'checkpoint.save="{folder}/saved"', "checkpoint.save_interval=5"]
        rows = train(case, settings, folder)
        again = train(case, [*settings[:-2], f'checkpoint.load="{folder}/saved"', "checkpoint.ckpt_step=5"], folder)
    keys = ("step", "loss", "grad_norm", "lr")
    want, got = ([[row[key] for key in keys] for row in part] for part in (rows[5:], again))
    for a, b in itertools.zip_longest(want, got):
        expect(a == b, f"{format_}: {b} instead of {a}")
    print(f"{case} {variant}, {format_}, pipeline {pipeline}: {len(got)} steps after the checkpoint are the same", flush=True)


def check_fused(case, variant, ranks, pipeline):
    settings = [*VARIANTS[variant], *PIPELINES[pipeline], *STRATEGIES["optim_grads_params"], f"cluster.gpus_per_node={ranks}",
                "train.train_iters=6"]
    rows, ops = [], []
    for options in ([], ["--disable-pass=fuse-quantize"]):
        with tempfile.TemporaryDirectory() as folder:
            rows.append([(row["loss"], row["grad_norm"]) for row in train(case, settings, pathlib.Path(folder), options)])
            plan = (pathlib.Path(folder) / "job.plan").read_text()
        ops.append({name for name in FUSED_OPS if f"= {name} " in plan})
    expect(rows[0] == rows[1], f"{case} {variant}: {rows[0]} with fused ops, {rows[1]} without")
    expect(ops[0] and not ops[1], f"{case} {variant}: {ops[0]} with fused ops, {ops[1]} without")
    print(f"{case} {variant}, ranks {ranks}, pipeline {pipeline}: {len(rows[0])} steps the same to the bit without {', '.join(sorted(ops[0]))}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("values", "resume", "fused"))
    parser.add_argument("case")
    parser.add_argument("formats", nargs="*", choices=[*SAVES, []])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["hybrid"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["no_shard"])
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=["none"])
    parser.add_argument("--tensor", type=int, default=1, help="ranks that divide each layer, and rows by sequences")
    parser.add_argument("--experts", type=int, default=1, help="ranks that have other experts")
    parser.add_argument("--repeated", action="store_true", help="another call runs all steps of these variants; here the compared ones")
    args = parser.parse_args()
    if args.what == "resume":
        for format_, variant, pipeline in itertools.product(args.formats, args.variants, args.pipelines):
            check_resume(args.case, format_, variant, pipeline)
        return
    if args.what == "fused":
        for variant, ranks, pipeline in itertools.product(args.variants, args.ranks, args.pipelines):
            check_fused(args.case, variant, ranks, pipeline)
        return
    first = {}
    for variant, ranks, strategy, pipeline in itertools.product(args.variants, args.ranks, args.strategies, args.pipelines):
        same = SAME_AS.get(variant, variant)
        whole = (same not in first and not args.repeated) or os.environ.get("SHARDC_LONG") == "1"
        loss = check_values(args.case, variant, ranks, strategy, pipeline, args.tensor, args.experts, whole)[0]
        # What is computed for a sample is the same in each layout; only sums over samples are rounded otherwise.
        want = first.setdefault(same, loss)
        expect(abs(loss - want) <= 1e-6 * want, f"{variant}: the first loss is {loss}, and was {want}")


if __name__ == "__main__":
    sys.exit(main())
