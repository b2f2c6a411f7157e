#!/usr/bin/env python3
"""Trains the smoke recipe on two GPUs: ten steps, finite losses that fall, and no other GPU touched.

    fsdp_smoke.py SHARDC RECIPE
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
STEPS = 10
GPUS = 2


def memory_used():
    """MiB in use on every GPU of the machine, whatever CUDA_VISIBLE_DEVICES says."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


def visible(count):
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    return set(range(count)) if names is None else {int(name) for name in names.split(",")}


def train(shardc, recipe, metrics):
    """Runs the job; gives the most memory that each GPU used beyond what it used before."""
    before = memory_used()
    most = [0] * len(before)
    job = subprocess.Popen([shardc, "run", recipe, f"--metrics={metrics}"])
    while job.poll() is None:
        most = [max(m, now - then) for m, now, then in zip(most, memory_used(), before)]
        time.sleep(0.2)
    if job.returncode != 0:
        sys.exit(f"shardc ended with status {job.returncode}")
    return most


def main():
    if os.environ.get("SHARDC_GPU") != "1":
        print("SHARDC_GPU is not 1")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        most = train(sys.argv[1], sys.argv[2], metrics)
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    if len(losses) != STEPS or losses[-1] is None or not math.isfinite(losses[-1]) or losses[-1] >= losses[0]:
        sys.exit(f"the losses are {losses}")
    touched = {gpu for gpu, used in enumerate(most) if used > 0}
    if len(touched) != GPUS or not touched <= visible(len(most)):
        sys.exit(f"GPUs {sorted(touched)} were used; CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    print(f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}, on GPUs {sorted(touched)}")


if __name__ == "__main__":
    main()
