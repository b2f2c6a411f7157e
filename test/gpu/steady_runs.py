#!/usr/bin/env python3
"""What holds of every run on GPUs: the host's losses, the same bits twice, memory as predicted, nothing allocated in steps.

    steady_runs.py CHECK SHARDC RECIPES

CHECK is what has to hold; see CHECKS. RECIPES is the repository's folder of that name.
"""

import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 77
HOST_LIMIT = 1e-4  # of losses in fp32, relative
MEMORY_LIMIT_MIB = 512
GPU = ["cluster.gpu=h200", "cluster.nodes=1", "cluster.gpus_per_node=1"]
SMALL = [("debug/llama_tiny.recipe", []), ("debug/gpt2_tiny.recipe", []), ("debug/llama_tiny_fsdp.recipe", [])]
GPT2 = ("gpt2/gpt2_124m.recipe", ["train.micro_batch_size=8", "train.global_batch_size=16"])


class Job:
    def __init__(self, shardc, recipes):
        self.shardc, self.recipes = shardc, recipes
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def run(self, recipe, settings, *options):
        """Metrics of each step, and what was said."""
        metrics = self.folder / "metrics.jsonl"
        sets = [f"--set={s}" for s in [*GPU, *settings]]
        command = [self.shardc, "run", self.recipes / recipe, *sets, f"--metrics={metrics}", *options]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{recipe}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in metrics.read_text().splitlines()], done.stdout


def losses(metrics):
    return [(step["loss"], step["grad_norm"]) for step in metrics if "loss" in step]


def check_host(job):
    """Losses in fp32 are the host backend's."""
    for recipe, settings in SMALL:
        fp32 = [*settings, "mixed_precision=fp32", "train.train_iters=20"]
        ours, _ = job.run(recipe, fp32)
        host, _ = job.run(recipe, fp32, "--backend=host", "--simulate-ranks=1")
        worst = max(abs(a[0] - b[0]) / abs(b[0]) for a, b in zip(losses(ours), losses(host)))
        if len(ours) != 20 or not worst <= HOST_LIMIT:
            sys.exit(f"{recipe}: losses differ by {worst}")
        print(f"{recipe}: 20 steps, losses within {worst:.1e} of the host's")


def check_deterministic(job):
    """Two runs in bf16 are equal to the bit where the recipe asks for it."""
    for recipe, settings in [GPT2, *SMALL]:
        same = [*settings, "mixed_precision=bf16_mixed", "model.deterministic_mode=true", "train.train_iters=10"]
        first, second = (losses(job.run(recipe, same)[0]) for _ in range(2))
        if first != second or len(first) != 10 or not math.isfinite(first[-1][0]):
            sys.exit(f"{recipe}: {first}\nand {second}")
        print(f"{recipe}: 10 steps twice, equal to the bit")


def check_memory(job):
    """The device has in use what was predicted, and after the first step nothing more."""
    for recipe, settings in [GPT2, *SMALL]:
        _, said = job.run(recipe, [*settings, "train.train_iters=8"])
        table = re.search(r"device memory: .*?; ([\d.]+) predicted, ([+-][\d.]+)\n(?:  .*\n)*", said)
        end = re.search(r"device memory .* since the first step ([+-]\d+) bytes, (\d+) allocations", said)
        if not table or not end:
            sys.exit(f"{recipe}: nothing is said of device memory\n{said}")
        print(f"{recipe}\n{table.group(0)}{end.group(0)}")
        if abs(float(table.group(2))) > MEMORY_LIMIT_MIB:
            sys.exit(f"{recipe}: {table.group(2)} MiB beside what was predicted")
        if int(end.group(1)) != 0 or int(end.group(2)) != 0:
            sys.exit(f"{recipe}: device memory grew by {end.group(1)} bytes, {end.group(2)} allocations")


def check_host_time(job):
    """Queueing a step takes the host a hundredth of the step at most, where steps are not tiny."""
    recipe, settings = GPT2[0], []
    metrics, _ = job.run(recipe, [*settings, "train.micro_batch_size=64", "train.global_batch_size=64", "train.train_iters=30"])
    tokens = 64 * 1024
    host = statistics.median(step["host_ms"] for step in metrics[10:])
    step = statistics.median(tokens / step["tokens_per_s"] * 1e3 for step in metrics[10:])
    print(f"{recipe}: {host:.3f} ms of the host in a step of {step:.1f} ms, {100 * host / step:.2f} %")
    if host > 0.01 * step:
        sys.exit("more than 1 %")


def check_ranges(job):
    """Profilers see ranges of NVTX named as in the plan: launches of segments, and ops while they are queued."""
    record = job.folder / "ranges"
    os.environ |= {"NVTX_INJECTION64_PATH": os.environ["SHARDC_NVTX_RECORDER"], "NVTX_RECORD": str(record)}
    _, said = job.run("debug/llama_tiny.recipe", ["train.train_iters=4"])
    names = record.read_text().splitlines()
    counts = {name: names.count(name) for name in ("init", "update")}
    micro = [name for name in names if name.startswith("micro ") and ":" not in name]
    ops = [name for name in names if re.match(r"micro: matmul %l0\.qkv \(.*recipe:\d+", name)]
    if counts["update"] != 4 or counts["init"] != 1 or not micro or len(ops) != len(set(micro)):
        sys.exit(f"{counts}, {len(micro)} microbatches, {len(ops)} captures of one op\n" + "\n".join(names[:40]))
    print(f"{len(names)} ranges: {counts}, {sorted(set(micro))} {len(micro)} times, for example '{ops[0]}'")


CHECKS = {"host": check_host, "ranges": check_ranges, "deterministic": check_deterministic, "memory": check_memory,
          "host-time": check_host_time}


def main():
    if os.environ.get("SHARDC_GPU") != "1":
        print("SHARDC_GPU is not 1")
        sys.exit(SKIPPED)
    CHECKS[sys.argv[1]](Job(sys.argv[2], pathlib.Path(sys.argv[3])))


if __name__ == "__main__":
    main()
