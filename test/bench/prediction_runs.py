#!/usr/bin/env python3
"""Compares predicted with measured step times of plans that one GPU can run.

    prediction_runs.py plan SHARDC ROOT FOLDER [DEVICE]
    prediction_runs.py run SHARDC_RUN FOLDER [--ops] [NAME...]

`plan` compiles each row of ROWS for one DEVICE (h200 by default) into FOLDER, with its prediction; ROOT is the
repository's. `run` trains each plan, and prints a table: predicted and measured milliseconds of a step, the predicted over
the measured time. The measured time is the median of the second half of a run's steps. The last line has the median and the
largest error. --ops leaves NAME.ops.json with the calls and microseconds of each op in three steps, by traces, which make
small plans slower. The two stages may run on different machines.
"""

import json
import pathlib
import re
import statistics
import subprocess
import sys

LLAMA = "test/gpu/llama_1b.recipe"
GPT2 = "recipes/gpt2/gpt2_124m.recipe"
EIGHT = "recipes/llama3/llama3_8b.recipe"
BF16_SUMS = "ddp.grad_reduce_in_fp32=false"
FULL = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]
FP16 = ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=4096"]  # no step is left out
SELECTIVE = ["model.recompute_granularity=selective"]


def batch(micro, accumulated=1):
    return [f"train.micro_batch_size={micro}", f"train.global_batch_size={micro * accumulated}"]


def llama(sequence, micro, *settings, accumulated=1, overlay=None):
    return LLAMA, overlay, [f"model.seq_length={sequence}", *batch(micro, accumulated), *settings]


def eight(layers, sequence, micro, *settings, overlay=None):
    """Layers of Llama 3 8B: four have 1.9, eight 2.8, sixteen 4.5 billion parameters."""
    return EIGHT, overlay, [f"model.num_layers={layers}", f"model.seq_length={sequence}", *batch(micro), BF16_SUMS,
                            "cluster.nodes=1", "model.tensor_model_parallel_size=1", "model.pipeline_model_parallel_size=1",
                            "model.context_parallel_size=1", "checkpoint.save=none", *settings]


def gpt2(micro, *settings, accumulated=1, overlay=None):
    return GPT2, overlay, [*batch(micro, accumulated), *settings]


# NAME: a recipe, an overlay of recipes/overlays, what is set.
ROWS = {
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
MOST_STEPS, LEAST_STEPS, MOST_MS = 12, 4, 16e3  # of a run


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def compile_rows(shardc, root, folder, device="h200"):
    folder.mkdir(parents=True, exist_ok=True)
    predicted = {}
    for name, (recipe, overlay, settings) in ROWS.items():
        words = [root / recipe] + ([f"--overlay={root}/recipes/overlays/{overlay}.recipe"] if overlay else [])
        for setting in [*settings, f"cluster.gpu={device}", "cluster.gpus_per_node=1"]:
            words.append(f"--set={setting}")
        text = output([shardc, "fit", *words])
        milliseconds = re.search(r"predicted step: ([0-9.,]+) (ms|s|us),", text)
        scale = {"us": 1e-3, "ms": 1, "s": 1e3}[milliseconds[2]]
        predicted[name] = float(milliseconds[1].replace(",", "")) * scale
        steps = max(LEAST_STEPS, min(MOST_STEPS, int(MOST_MS / predicted[name])))
        output([shardc, "dump-plan", *words, f"--set=train.train_iters={steps}", "-o", folder / f"{name}.plan"])
        print(f"{name}: {predicted[name]:.1f} ms", flush=True)
    (folder / "predicted.json").write_text(json.dumps(predicted, indent=1))


def times_of_ops(trace):
    """Of each op that was traced: how often it ran kernels, and their microseconds together."""
    events = json.loads(trace.read_text())
    times = {}
    for event in events["traceEvents"] if isinstance(events, dict) else events:
        if event.get("ph") == "X":
            row = times.setdefault(event["name"], [0, 0.0])
            row[0], row[1] = row[0] + 1, row[1] + event["dur"]
    return times


def measured(shardc_run, plan, metrics, has_ops):
    """Seconds of a step, or a text that says why there are none. The times of ops are left beside the metrics."""
    metrics.unlink(missing_ok=True)
    trace = metrics.with_suffix(".trace.json")
    options = [f"--metrics={metrics}", *([f"--trace={trace}"] if has_ops else [])]
    done = subprocess.run([str(shardc_run), *options, str(plan)], capture_output=True, text=True)
    if trace.exists():
        metrics.with_suffix(".ops.json").write_text(json.dumps(times_of_ops(trace)))
        trace.unlink()
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [step["tokens"] / step["tokens_per_s"] for step in steps if "tokens_per_s" in step]
    return statistics.median(seconds[len(seconds) // 2:])


def run_rows(shardc_run, folder, has_ops, names):
    predicted = json.loads((folder / "predicted.json").read_text())
    errors = {}
    print("| plan | predicted ms | measured ms | predicted / measured |\n|---|--:|--:|--:|", flush=True)
    for name, milliseconds in predicted.items():
        if names and name not in names:
            continue
        seconds = measured(shardc_run, folder / f"{name}.plan", folder / f"{name}.jsonl", has_ops)
        if isinstance(seconds, str):
            print(f"| {name} | {milliseconds:.1f} | {seconds} | |", flush=True)
            continue
        errors[name] = milliseconds / 1e3 / seconds - 1
        print(f"| {name} | {milliseconds:.1f} | {seconds * 1e3:.1f} | {errors[name] + 1:.3f} |", flush=True)
    sizes = [abs(error) for error in errors.values()]
    print(f"\n{len(sizes)} plans: median {statistics.median(sizes):.1%}, largest {max(sizes):.1%} "
          f"({max(errors, key=lambda name: abs(errors[name]))})")


if __name__ == "__main__":
    if sys.argv[1] == "plan":
        compile_rows(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]), *sys.argv[5:])
    else:
        names = [word for word in sys.argv[4:] if word != "--ops"]
        run_rows(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]), "--ops" in sys.argv, names)
