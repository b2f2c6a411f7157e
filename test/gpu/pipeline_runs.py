#!/usr/bin/env python3
"""Compares pipelines on GPUs with one GPU: their losses and speeds.

    pipeline_runs.py SHARDC RECIPES [--steps=N]

A small model in fp32 takes 20 steps on one GPU, then with as many stages as the visible GPUs allow, with CUDA graphs
and without. Losses must be within 1e-4 of those of one GPU. Then a Llama of 1.24 billion parameters takes N steps (30)
with each layout, and a table shows the speeds. RECIPES is the repository's folder of that name. Needs two or four GPUs.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import gpus

LIMIT = 1e-4  # of losses in fp32, relative
HERE = pathlib.Path(__file__).resolve().parent
SMALL = ["mixed_precision=fp32", "model.num_layers=8", "model.share_embeddings_and_output_weights=false", "train.train_iters=20",
         "train.micro_batch_size=1", "train.global_batch_size=16"]
LARGE = ["train.micro_batch_size=1", "train.global_batch_size=32", "model.share_embeddings_and_output_weights=false"]


class Layout:
    """The number of stages, and of data-parallel ranks in each."""

    def __init__(self, stages, data):
        self.stages, self.data = stages, data

    def __str__(self):
        return "one GPU" if self.count == 1 else f"pp {self.stages}" + (f" x dp {self.data}" if self.data > 1 else "")

    @property
    def count(self):
        return self.stages * self.data

    def settings(self):
        sets = ["cluster.gpu=h200", "cluster.nodes=1", f"cluster.gpus_per_node={self.count}"]
        if self.stages > 1:
            sets.append(f"model.pipeline_model_parallel_size={self.stages}")
        if self.data > 1:
            sets += ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads"]
        return sets


def layouts():
    count = len(gpus.visible())
    gpus.need(2)
    return [Layout(2, 1)] + ([Layout(4, 1), Layout(2, 2)] if count >= 4 else [])


class Job:
    def __init__(self, shardc):
        self.shardc = shardc
        self.temporary = tempfile.TemporaryDirectory()
        self.metrics = pathlib.Path(self.temporary.name) / "metrics.jsonl"

    def run(self, recipe, layout, settings, *options):
        """The metrics of each step."""
        self.metrics.unlink(missing_ok=True)
        sets = [f"--set={s}" for s in [*settings, *layout.settings()]]
        command = [self.shardc, "run", recipe, *sets, f"--metrics={self.metrics}", *options]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{layout} {' '.join(options)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        for line in done.stdout.splitlines():
            if line.startswith(("graphs:", "device memory")):
                print(f"  {line}")
        return [json.loads(line) for line in self.metrics.read_text().splitlines() if '"loss"' in line]


def check_losses(job, recipe):
    plain = job.run(recipe, Layout(1, 1), SMALL)
    print(f"| {'losses of 20 steps in fp32':<32} | largest relative difference |\n|---|--:|")
    for layout in layouts():
        for options in ([], ["--no-graph"], ["--check"]):
            got = job.run(recipe, layout, SMALL, *options)
            if len(got) != len(plain):
                sys.exit(f"{layout}: {len(got)} steps, not {len(plain)}")
            off = max(abs(a["loss"] - b["loss"]) / abs(b["loss"]) for a, b in zip(got, plain))
            print(f"| {' '.join([str(layout), *options]):<32} | {off:.2e} |", flush=True)
            if not off <= LIMIT:
                sys.exit(f"{layout} {' '.join(options)}: losses differ by {off:.2e}, more than {LIMIT}")


def time_steps(job, steps):
    rows = []
    for layout in [Layout(1, 1), *layouts()]:
        records = job.run(HERE / "llama_1b.recipe", layout, [*LARGE, f"train.train_iters={steps}"])
        speed = statistics.mean(record["tokens_per_s"] for record in records[steps // 2:])
        rows.append((str(layout), speed, speed / layout.count, records[-1]["mfu"], records[-1]["loss"]))
    print("| llama_1b, 32 microbatches in a step | tokens/s | of a GPU | mfu | last loss |\n|---|--:|--:|--:|--:|")
    for name, speed, each, mfu, loss in rows:
        print(f"| {name} | {speed:,.0f} | {each:,.0f} | {mfu:.3f} | {loss:.4f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardc")
    parser.add_argument("recipes", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    gpus.need_permission()
    job = Job(options.shardc)
    check_losses(job, options.recipes / "debug/llama_tiny.recipe")
    time_steps(job, options.steps)


if __name__ == "__main__":
    main()
