#!/usr/bin/env python3
"""Runs small models under a tool of compute-sanitizer, which must report nothing.

    sanitized.py memcheck|racecheck|synccheck|initcheck SHARDC RECIPES [--only=WORDS] [--kernels=own|any] [--look=ours|others|all]

Uses one GPU; memcheck also uses two if two are visible. Skipped without compute-sanitizer. --only selects runs whose
recipe and settings contain these words; --kernels selects whose products and attention run; --look selects which
kernels the tool checks: ours, all except libraries' kernels, or all.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import gpus

SKIPPED = 77
# Names are mangled kernel names. Kernels of libraries order their accesses in ways that the tool does not see.
LOOKS = {"ours": ["--kernel-name", "kns=shardc"],
         "others": ["--kernel-name-exclude", "regex=nvjet|cudnn|cublas|cutlass|gemm|nccl|cub"],
         "all": []}
LOOK = {"racecheck": "ours", "synccheck": "ours"}
GPU = ["cluster.gpu=h200", "cluster.nodes=1", "cluster.gpus_per_node=1", "train.train_iters=2"]
# Every family of kernels: both norms and activations, rotary and learned positions, both precisions, dropout, masks of
# documents, recomputation, deterministic sums.
RUNS = [("debug/llama_tiny.recipe", ["mixed_precision=bf16_mixed"]),
        ("debug/llama_tiny.recipe", ["mixed_precision=fp32", "model.deterministic_mode=true"]),
        ("debug/gpt2_tiny.recipe", ["mixed_precision=bf16_mixed", "model.hidden_dropout=0", "model.attention_dropout=0"]),
        ("debug/gpt2_tiny.recipe", ["mixed_precision=fp32"]),
        ("debug/llama_tiny_fsdp_bf16.recipe", [])]
# Two processes; our own kernels sum in rank order. NCCL queries features that the driver may not have.
TWO = ("debug/llama_tiny_fsdp.recipe", ["cluster.gpus_per_node=2", "mixed_precision=bf16_mixed", "model.deterministic_mode=true"])
TWO_OPTIONS = ["--report-api-errors", "no"]
# racecheck itself fails ("failed to handle a hardware exception") on some libraries' kernels for Hopper: cuDNN's
# attention, and with it, or in bf16, cuBLASLt's products. Hand-written kernels replace them here.
RACED = [*RUNS, ("debug/llama_tiny.recipe", ["mixed_precision=bf16_mixed", "model.attention_dropout=0.1"]),
         ("debug/gpt2_tiny.recipe", ["mixed_precision=bf16_mixed"])]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("recipes", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--kernels", choices=["own", "any"])
    parser.add_argument("--look", choices=LOOKS)
    options = parser.parse_args()
    options.kernels = options.kernels or ("own" if options.tool == "racecheck" else "any")
    options.look = options.look or LOOK.get(options.tool, "all")
    return options


def check(options, sanitizer, recipe, settings, plan):
    sets = [f"--set={s}" for s in [*GPU, *settings]]
    subprocess.run([options.shardc, "dump-plan", options.recipes / recipe, "-o", plan, *sets], check=True, capture_output=True)
    own = options.kernels == "own" and "mixed_precision=fp32" not in settings
    more = TWO_OPTIONS if (recipe, settings) == TWO else []
    begin = time.monotonic()
    done = subprocess.run(
        [sanitizer, "--tool", options.tool, "--target-processes", "all", "--error-exitcode", "9", *more, *LOOKS[options.look],
         options.shardc.with_name("shardc-run"), plan],
        capture_output=True, text=True, env={**os.environ, "SHARDC_CACHE_DIR": str(plan.parent), "SHARDC_OWN_KERNELS": str(int(own))})
    summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
    # Each process of the run prints a summary; the launching process may print one too.
    clean = all("ERROR SUMMARY: 0 errors" in line or "RACECHECK SUMMARY: 0 hazards" in line for line in summary)
    if done.returncode != 0 or "done after 2 of 2 steps" not in done.stdout or len(summary) < (2 if more else 1) or not clean:
        sys.exit(f"{options.tool} {recipe} {settings}: status {done.returncode}\n{done.stdout[-6000:]}{done.stderr[-2000:]}")
    print(f"{options.tool} {recipe} {' '.join(settings)}: {time.monotonic() - begin:.1f} s; {' '.join(summary)}", flush=True)


def main():
    options = parse()
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if os.environ.get("SHARDC_GPU") != "1" or not os.path.exists(sanitizer):
        print("SHARDC_GPU is not 1, or there is no compute-sanitizer")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        runs = RACED if options.tool == "racecheck" else RUNS
        if options.tool == "memcheck" and len(gpus.visible()) >= 2:
            runs = [*runs, TWO]
        for number, (recipe, settings) in enumerate(runs):
            if all(word in " ".join([recipe, *settings]) for word in options.only.split()):
                check(options, sanitizer, recipe, settings, pathlib.Path(folder) / f"{number}.plan")


if __name__ == "__main__":
    main()
