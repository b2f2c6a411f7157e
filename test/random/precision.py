#!/usr/bin/env python3
"""Checks every preset of mixed_precision and random combinations of precision options: what `shardc check` accepts it has
compiled, and what it refuses it refuses by rules of docs/rules.md.

    precision.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

A recipe is a small model with a strategy, a device and some of the options about types of numbers. None may end with a
message that no rule gives, nor be accepted and not compiled. Exits with 1 if one is, or if hardly any is accepted. Without
--count it takes 200, and 10,000 with SHARDC_LONG=1.
"""

import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from batches import parse_options, show, try_all
from compare import REASONS
from recipes import OPTIONS, value_of, write
from run import strategy

BATCH = 50  # recipes of one process
COUNT, COUNT_LONG = 200, 10_000
POOL = sorted(path for path in OPTIONS if path.startswith("mixed_precision.") or re.fullmatch(
    r"model\.(fp8.*|fp4.*|fp16|bf16|fp32|params_dtype|first_last_layers_bf16|num_layers_at_(start|end)_in_bf16)|"
    r"ddp\.(fp8.*|fp4.*|keep_fp8_transpose_cache|reuse_grad_buf.*|grad_reduce_in_fp32|megatron_fsdp_.*_dtype)|"
    r"optimizer\.(fp8.*|.*_dtype|.*loss_scale.*|hysteresis|use_precision_aware_optimizer)", path))
MODEL = ("model llama { num_layers = 3  hidden_size = 64  num_attention_heads = 4  num_query_groups = 2  ffn_hidden_size = 96  "
         "seq_length = 32  vocab_size = 64 }\n  train { micro_batch_size = 1  global_batch_size = 16  train_iters = 4 }\n")
# The rules that refuse a preset that nothing is set beside, under FSDP on a device that has its formats.
GATHER, FP4 = "fp8-param-gather-unsupported", "fp4-unsupported"
PRESETS = {
    "fp32": set(), "bf16_mixed": set(), "fp16_mixed": set(),
    "bf16_with_fp8_delayed_scaling_mixed": set(), "fp16_with_fp8_delayed_scaling_mixed": set(),
    "bf16_with_mxfp8_mixed": {GATHER}, "fp16_with_mxfp8_mixed": {GATHER},
    "bf16_with_fp8_current_scaling_mixed": set(), "fp16_with_fp8_current_scaling_mixed": set(),
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": set(), "nanov2_bf16_with_fp8_current_scaling_mixed": {GATHER},
    "bf16_with_fp8_subchannel_scaling_mixed": set(), "fp16_with_fp8_subchannel_scaling_mixed": set(),
    "bf16_with_nvfp4_mixed": {FP4},
}
# Errors about the text itself, and what says that a recipe is accepted but not compiled.
OF_TEXT = {"value-out-of-range", "wrong-type"}
NOT_COMPILED = {"checks-only", "cannot-be-compiled", "plan-refused"}


def recipe(name, lines):
    return f"recipe {name} {{\n  {MODEL}" + "".join(f"  {line}\n" for line in lines) + "}\n"


def draw(seed):
    random_ = random.Random(seed)
    written = {"cluster.gpu": random_.choice(["host", "host", "h100", "h200", "b200", "a100", "l40s"]),
               "cluster.gpus_per_node": random_.choice([1, 2, 4]), **strategy(random_)}
    if random_.random() < 0.6:
        written["mixed_precision"] = random_.choice(sorted(PRESETS))
    if random_.random() < 0.2:
        written["model.tensor_model_parallel_size"] = 2
    for path in random_.sample(POOL, random_.choice([0, 1, 1, 2, 3, 5])):
        written[path] = value_of(OPTIONS[path], random_)
    return recipe(f"r{seed}", [f"{path} = {write(OPTIONS[path], value)}" for path, value in written.items()])


def check(shardc, texts):
    """The messages about each recipe, by severity."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"{number}.recipe") for number in range(len(texts))]
        for path, text in zip(paths, texts):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([shardc, "check", "--diag-format=json", *paths], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"shardc check ended with {done.returncode}: {done.stderr[-2000:]}")
        said = {path: collections.defaultdict(set) for path in paths}
        for line in done.stdout.splitlines():
            message = json.loads(line)
            said[message["file"]][message["severity"]].add(message["id"])
        return [said[path] for path in paths]


def fault(said):
    """What is wrong with what was said of a recipe; None if nothing is."""
    everything = set().union(*said.values())
    if everything & NOT_COMPILED:
        return f"accepted and not compiled: {sorted(everything & NOT_COMPILED)}"
    if said["error"] - REASONS - OF_TEXT:
        return f"refused by no rule: {sorted(said['error'] - REASONS - OF_TEXT)}"
    return None


def try_batch(shardc, seeds):
    found, counts = [], collections.Counter()
    texts = [draw(seed) for seed in seeds]
    for seed, text, said in zip(seeds, texts, check(shardc, texts)):
        counts["refused" if said["error"] else "compiled"] += 1
        why = fault(said)
        if why:
            found.append((seed, text, why))
    return found, counts


def check_presets(shardc):
    """Every preset that the option takes, as it is."""
    known = set(OPTIONS["mixed_precision"].words)
    if known != set(PRESETS):
        sys.exit(f"presets without an expectation, or the other way round: {sorted(known ^ set(PRESETS))}")
    names = sorted(PRESETS)
    texts = [recipe(name, ["dist.use_megatron_fsdp = true", f"mixed_precision = {name}", "cluster.gpus_per_node = 2",
                           f"cluster.gpu = {'h100' if 'subchannel' in name or 'nanov2' in name else 'b200'}"]) for name in names]
    wrong = [f"{name}: errors {sorted(said['error'])}, expected {sorted(PRESETS[name])}; {fault(said) or 'by rules'}"
             for name, said in zip(names, check(shardc, texts)) if said["error"] != PRESETS[name] or fault(said)]
    if wrong:
        sys.exit("\n".join(wrong))


def main():
    options = parse_options("checks random combinations of precision options", COUNT)
    options.count = min(options.count, COUNT_LONG)
    check_presets(options.shardc)
    found, counts = try_all(options, try_batch, BATCH)
    show(options, found)
    print(f"{len(PRESETS)} presets, {options.count} combinations from seed {options.first}: {counts['compiled']} compiled, "
          f"{counts['refused']} refused by rules, {len(found)} otherwise")
    sys.exit(1 if found or counts["compiled"] < options.count // 10 else 0)


if __name__ == "__main__":
    main()
