#!/usr/bin/env python3
"""Trains the smoke recipe on two GPUs for ten steps, with a save and a resumption between them. Losses must be finite
and fall, and no other GPU may be used.

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

from gpus import indices, memory_used, need, need_permission, visible

STEPS = 10
GPUS = 2


def train(shardc, recipe, folder, metrics):
    """Trains half of the job, starting from the checkpoint in the folder. Returns how much memory each GPU used beyond
    what was in use before, the losses, and the output."""
    before = memory_used()
    most = [0] * len(before)
    settings = [f'checkpoint.save="{folder}"', f'checkpoint.load="{folder}"', f"checkpoint.save_interval={STEPS // 2}",
                f"train.exit_interval={STEPS // 2}"]
    said = folder.with_suffix(".out")
    with open(said, "w") as out:
        job = subprocess.Popen([shardc, "run", recipe, f"--metrics={metrics}", *[f"--set={s}" for s in settings]], stdout=out)
        while job.poll() is None:
            most = [max(m, now - then) for m, now, then in zip(most, memory_used(), before)]
            time.sleep(0.2)
    if job.returncode != 0:
        sys.exit(f"shardc ended with status {job.returncode}\n{said.read_text()}")
    return most, [json.loads(line)["loss"] for line in metrics.read_text().splitlines()], said.read_text()


def main():
    need_permission()
    need(GPUS)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible()[:GPUS])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        runs = [train(*sys.argv[1:3], folder / "saved", folder / f"metrics{half}.jsonl") for half in range(2)]
    most = [max(used) for used in zip(*(used for used, _, _ in runs))]
    losses = [loss for _, half, _ in runs for loss in half]
    if f"continuing after step {STEPS // 2}" not in runs[1][2]:
        sys.exit(f"nothing was resumed\n{runs[1][2]}")
    if len(losses) != STEPS or losses[-1] is None or not math.isfinite(losses[-1]) or losses[-1] >= losses[0]:
        sys.exit(f"the losses are {losses}")
    touched = {gpu for gpu, used in enumerate(most) if used > 0}
    if len(touched) != GPUS or not touched <= set(indices(visible())):
        sys.exit(f"GPUs {sorted(touched)} were used; CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    print(f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}, on GPUs {sorted(touched)}")


if __name__ == "__main__":
    main()
