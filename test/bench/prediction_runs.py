#!/usr/bin/env python3
"""Compares predicted with measured step times of plans that one GPU can run.

    prediction_runs.py prepare FOLDER --gpu=h200 [--shardc=PROGRAM]
    prediction_runs.py measure FOLDER [--shardc-run=PROGRAM] [--set=others] [--share=I/N] [--seconds=S] [--results=FILE] [--ops]
                       [NAME ...]
    prediction_runs.py table FOLDER [RESULTS ...] [--record FILE HARDWARE]

`prepare` compiles each row of FITTED and OTHERS for one GPU of a kind. Plans and manifest.json stay in FOLDER. `measure`
needs FOLDER and shardc-run alone. It trains each plan, or those of one set, or those that are named; with --share, the I-th of N
parts of them (from 0) that take about as long, so that GPUs of one machine can work side by side. What a run gave is a line of RESULTS (FOLDER/measured-I.jsonl by default); runs
that have their lines are not repeated, and no run begins after S seconds. `table` prints, for FITTED and OTHERS, predicted and
measured milliseconds of a step, the predicted over the measured time, and the median and the largest error. The measured time
is the median of the second half of a run's steps. --ops leaves NAME.ops.json with the calls and microseconds of each op in
three steps, by traces, which make small plans slower.
"""

import argparse
import json
import lzma
import pathlib
import re
import statistics
import sys
import tempfile
import time

import record_figure
from tune_winners import ROOT, make_stages, output, steps_of

LLAMA = "test/gpu/llama_1b.recipe"
GPT2 = "recipes/gpt2/gpt2_124m.recipe"
BF16_SUMS = "ddp.grad_reduce_in_fp32=false"
FULL = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]
FP16 = ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=4096"]  # no step is left out
ONE_GPU = ["cluster.nodes=1", "checkpoint.save=none", *(f"model.{axis}_model_parallel_size=1" for axis in ("tensor", "pipeline", "expert")),
           "model.context_parallel_size=1"]
SELECTIVE = ["model.recompute_granularity=selective"]


def batch(micro, accumulated=1):
    return [f"train.micro_batch_size={micro}", f"train.global_batch_size={micro * accumulated}"]


def llama(sequence, micro, *settings, accumulated=1, overlay=None):
    return LLAMA, overlay, [f"model.seq_length={sequence}", *batch(micro, accumulated), *settings]


def layers_of(recipe, layers, sequence, micro, *settings, accumulated=1, overlay=None):
    """The first layers of a larger model, on one GPU."""
    return f"recipes/{recipe}.recipe", overlay, [f"model.num_layers={layers}", f"model.seq_length={sequence}", *batch(micro, accumulated),
                                                 *ONE_GPU, *settings]


def eight(layers, sequence, micro, *settings, overlay=None):
    """Layers of Llama 3 8B: four have 1.9, eight 2.8, sixteen 4.5 billion parameters."""
    return layers_of("llama3/llama3_8b", layers, sequence, micro, BF16_SUMS, *settings, overlay=overlay)


def gpt2(micro, *settings, accumulated=1, overlay=None):
    return GPT2, overlay, [*batch(micro, accumulated), *settings]


# NAME: a recipe, an overlay of recipes/overlays, what is set. Rates were taken from runs of these.
FITTED = {
    "llama_1b-s512-m16": llama(512, 16),
    "llama_1b-s512-m2": llama(512, 2),
    "llama_1b-s1024-m2": llama(1024, 2),
    "llama_1b-s2048-m4": llama(2048, 4),
    "llama_1b-s4096-m4": llama(4096, 4, BF16_SUMS),
    "llama_1b-s8192-m2": llama(8192, 2, BF16_SUMS),
    "llama_1b-s16384-m1": llama(16384, 1, BF16_SUMS),
    "llama_1b-s32768-m1": llama(32768, 1, BF16_SUMS),
    "llama_1b-s65536-m1": llama(65536, 1, BF16_SUMS, *FULL),
    "llama_1b-s131072-m1": llama(131072, 1, BF16_SUMS, *FULL),
    "llama_1b-s8192-m2-full": llama(8192, 2, *FULL),
    "llama_1b-s8192-m2-selective": llama(8192, 2, *SELECTIVE),
    "llama_1b-s8192-m2-mlp": llama(8192, 2, *SELECTIVE, "model.recompute_modules=[mlp, layernorm]"),
    "llama_1b-s2048-m1-x8": llama(2048, 1, accumulated=8),
    "llama_1b-s512-m1-x16": llama(512, 1, accumulated=16),
    "llama_1b-s4096-m2-fp16": llama(4096, 2, *FP16),
    "llama_1b-s1024-m8-fp16": llama(1024, 8, *FP16),
    "llama_1b-s4096-m4-delayed": llama(4096, 4, overlay="fp8_delayed"),
    "llama_1b-s4096-m4-tensorwise": llama(4096, 4, overlay="fp8_tensorwise"),
    "llama_1b-s4096-m4-blockwise": llama(4096, 4, overlay="fp8_blockwise"),
    "llama_1b-s1024-m2-x4-delayed": llama(1024, 2, accumulated=4, overlay="fp8_delayed"),
    "llama3_8b-l4-s8192-m1": eight(4, 8192, 1),
    "llama3_8b-l8-s4096-m2": eight(8, 4096, 2),
    "llama3_8b-l16-s2048-m2": eight(16, 2048, 2),
    "llama3_8b-l8-s8192-m2-full": eight(8, 8192, 2, *FULL),
    "llama3_8b-l8-s8192-m1-delayed": eight(8, 8192, 1, overlay="fp8_delayed"),
    "llama3_8b-l8-s8192-m1-tensorwise": eight(8, 8192, 1, overlay="fp8_tensorwise"),
    "mixtral_2l": ("test/gpu/mixtral_2l.recipe", None, []),
    "qwen3_moe_4l": ("test/gpu/qwen3_moe_4l.recipe", None, []),
    "gpt2_124m-m4": gpt2(4),
    "gpt2_124m-m64": gpt2(64),
    "gpt2_124m-m8-x8": gpt2(8, accumulated=8),
    "gpt2_124m-m16-fp16": gpt2(16, *FP16),
    "gpt2_124m-m8-full": gpt2(8, *FULL),
}
# Models, or sizes of them, no run of which gave a rate.
OTHERS = {
    "llama3_8b-l12-s512-m8-x4": layers_of("llama3/llama3_8b", 12, 512, 8, BF16_SUMS, accumulated=4),
    "llama3_8b-l2-s131072-m1-full": eight(2, 131072, 1, *FULL),
    "llama2_7b-l8-s4096-m2": layers_of("llama2/llama2_7b", 8, 4096, 2, BF16_SUMS),
    "mistral_7b-l8-s16384-m1": layers_of("mistral/mistral_7b", 8, 16384, 1, BF16_SUMS),
    "qwen25_7b-l8-s2048-m4-tensorwise": layers_of("qwen25/qwen25_7b", 8, 2048, 4, overlay="fp8_tensorwise"),
    "qwen3_8b-l6-s4096-m2-delayed": layers_of("qwen3/qwen3_8b", 6, 4096, 2, BF16_SUMS, overlay="fp8_delayed"),
    "qwen3_8b-l4-s32768-m1-full": layers_of("qwen3/qwen3_8b", 4, 32768, 1, BF16_SUMS, *FULL),
    "gemma3_1b-s4096-m2": layers_of("gemma3/gemma3_1b", 26, 4096, 2, BF16_SUMS),
    "phi4_mini-l8-s4096-m2": layers_of("phi/phi4_mini", 8, 4096, 2, BF16_SUMS),
    "glm4_9b-l6-s8192-m1": layers_of("glm4/glm4_9b", 6, 8192, 1, BF16_SUMS),
    "nemotron3_8b-l6-s4096-m2": layers_of("nemotron/nemotron3_8b", 6, 4096, 2, BF16_SUMS),
    "gpt2_1558m-l24-m4": layers_of("gpt2/gpt2_1558m", 24, 1024, 4, BF16_SUMS),
    "mixtral_8x7b-l2-s4096-m2-x2": layers_of("mixtral/mixtral_8x7b", 2, 4096, 2, BF16_SUMS, accumulated=2),
    "gpt_oss_20b-l3-s4096-m2": layers_of("gpt_oss/gpt_oss_20b", 3, 4096, 2, BF16_SUMS),
    "moonlight_16b-l4-s4096-m2": layers_of("deepseek/moonlight_16b_a3b", 4, 4096, 2, BF16_SUMS),
    "qwen15_moe-l4-s4096-m2": layers_of("qwen2_moe/qwen15_moe_a2_7b", 4, 4096, 2, BF16_SUMS),
}
SETS = {"fitted": FITTED, "others": OTHERS}
MOST_STEPS, LEAST_STEPS, RUN_MS = 12, 3, 6e3  # of a run
START_MS = 4e3  # what a run takes besides its steps, about


def prepare(arguments):
    folder = pathlib.Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    for kind, rows in SETS.items():
        for name, (recipe, overlay, settings) in rows.items():
            words = [ROOT / recipe] + ([f"--overlay={ROOT}/recipes/overlays/{overlay}.recipe"] if overlay else [])
            words += [f"--set={setting}" for setting in [*settings, f"cluster.gpu={arguments.gpu}", "cluster.gpus_per_node=1"]]
            number, unit = re.search(r"predicted step: ([0-9.,]+) (ms|s|us),", output([arguments.shardc, "fit", *words])).groups()
            predicted = float(number.replace(",", "")) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]
            steps = max(LEAST_STEPS, min(MOST_STEPS, int(RUN_MS / predicted)))
            with tempfile.TemporaryDirectory() as scratch:
                plan = pathlib.Path(scratch) / "plan"
                output([arguments.shardc, "dump-plan", *words, f"--set=train.train_iters={steps}", "-o", plan])
                (folder / f"{name}.plan.xz").write_bytes(lzma.compress(plan.read_bytes()))
            manifest.append({"name": name, "set": kind, "predicted_ms": predicted, "steps": steps})
            print(f"{name}: {predicted:.1f} ms, {steps} steps", flush=True)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def share_of(rows, part, parts):
    """The part-th of parts lists of rows that take about as long: the longest first, each to the part that has least."""
    lists = [[] for _ in range(parts)]
    milliseconds = lambda row: START_MS + row["predicted_ms"] * row["steps"]
    for row in sorted(rows, key=milliseconds, reverse=True):
        min(lists, key=lambda each: sum(map(milliseconds, each))).append(row)
    return lists[part]


def times_of_ops(trace):
    """Of each op that was traced: how often it ran kernels, and their microseconds together."""
    events = json.loads(trace.read_text())
    times = {}
    for event in events["traceEvents"] if isinstance(events, dict) else events:
        if event.get("ph") == "X":
            row = times.setdefault(event["name"], [0, 0.0])
            row[0], row[1] = row[0] + 1, row[1] + event["dur"]
    return times


def run(arguments, folder, name):
    """Milliseconds of a step, or a text that says why there are none. With --ops, the times of ops are left in the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        trace = pathlib.Path(scratch) / "trace.json"
        steps = steps_of(arguments.shardc_run, folder / f"{name}.plan.xz", [f"--trace={trace}"] if arguments.ops else [])
        if trace.exists():
            (folder / f"{name}.ops.json").write_text(json.dumps(times_of_ops(trace)))
    if isinstance(steps, str):
        return steps
    return statistics.median(seconds for _, seconds in steps[len(steps) // 2:]) * 1e3


def results_of(files):
    """By name: the step time in milliseconds that was measured last, or the message of a failed run."""
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return {line["name"]: line["result"] for line in lines}


def measure(arguments):
    folder, begin = pathlib.Path(arguments.folder), time.monotonic()
    part, parts = map(int, arguments.share.split("/"))
    file = pathlib.Path(arguments.results or folder / f"measured-{part}.jsonl")
    rows = [row for row in json.loads((folder / "manifest.json").read_text())
            if arguments.set in (None, row["set"]) and (not arguments.names or row["name"] in arguments.names)]
    for row in share_of(rows, part, parts):
        name = row["name"]
        if name in results_of([file]):
            continue
        if time.monotonic() - begin > arguments.seconds:
            sys.exit(f"{arguments.seconds} s are over; the same command goes on")
        result = run(arguments, folder, name)
        with file.open("a") as lines:
            lines.write(json.dumps({"name": name, "result": result}) + "\n")
        print(f"{name}: {result if isinstance(result, str) else f'{result:.1f} ms'}", flush=True)


def table(arguments):
    folder = pathlib.Path(arguments.folder)
    results = results_of([pathlib.Path(file) for file in arguments.results] or sorted(folder.glob("measured-*.jsonl")))
    rows = json.loads((folder / "manifest.json").read_text())
    for kind in SETS:
        errors = {}
        print(f"| {kind} | predicted ms | measured ms | predicted / measured |\n|---|--:|--:|--:|")
        for row in rows:
            result = results.get(row["name"], "not run")
            if row["set"] != kind:
                continue
            if isinstance(result, str):
                print(f"| {row['name']} | {row['predicted_ms']:,.1f} | {result} | |")
                continue
            errors[row["name"]] = row["predicted_ms"] / result - 1
            print(f"| {row['name']} | {row['predicted_ms']:,.1f} | {result:,.1f} | {errors[row['name']] + 1:.3f} |")
            if arguments.record:
                file, hardware = arguments.record
                record_figure.record(file, case=row["name"], measure="ms of a step", ours=round(result, 1), predicted=round(row["predicted_ms"], 1),
                                     more={"predicted / measured": f"{errors[row['name']] + 1:.3f}"}, hardware=hardware, table=kind)
        if errors:
            sizes = [abs(error) for error in errors.values()]
            print(f"\n{len(sizes)} plans: median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} "
                  f"({max(errors, key=lambda name: abs(errors[name]))})\n")


def main(words):
    parser, stages, _ = make_stages(__doc__, prepare)
    stage = stages.add_parser("measure")
    stage.add_argument("folder")
    stage.add_argument("names", nargs="*")
    stage.add_argument("--shardc-run", default=ROOT / "build/release/bin/shardc-run")
    stage.add_argument("--set", choices=SETS, help="only its plans")
    stage.add_argument("--share", default="0/1", help="I/N: the I-th of N parts, from 0")
    stage.add_argument("--seconds", type=float, default=540, help="after which no run begins")
    stage.add_argument("--results", help="file of the lines; default: FOLDER/measured-I.jsonl")
    stage.add_argument("--ops", action="store_true", help="leave NAME.ops.json")
    stage.set_defaults(call=measure)
    stage = stages.add_parser("table")
    stage.add_argument("folder")
    stage.add_argument("results", nargs="*")
    record_figure.add_argument(stage)
    stage.set_defaults(call=table)
    arguments = parser.parse_args(words)
    arguments.call(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
