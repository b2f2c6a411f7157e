#!/usr/bin/env python3
"""The regret of predictions on layouts that vTrain measured: ground_truth_multi.csv of github.com/VIA-Research/vTrain, GPT models
trained in fp16 by Megatron-DeepSpeed on A100s, with full recomputation.

    measured_layouts.py SHARDC CSV [--set=path=value ...]

For each model: the layout with the shortest predicted step, its measured time divided by the shortest measured one, and the fastest
layout. docs/benchmarks/tune.md has the table.
"""

import csv
import itertools
import pathlib
import re
import subprocess
import sys
import tempfile

RECIPE = pathlib.Path(__file__).resolve().parent.parent.parent / "recipes/gpt2/gpt2_1558m_ddp.recipe"
NODE = 8  # GPUs


def settings_of(row):
    layers, hidden, sequence = (int(row[name]) for name in ("# layers", "hidden size", "sequence length"))
    return [f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.ffn_hidden_size={4 * hidden}",
            f"model.num_attention_heads={row['attention heads']}", f"model.seq_length={sequence}", f"dataset.seq_length={sequence}",
            f"model.max_position_embeddings={sequence}", "model.vocab_size=51200", "dataset.kind=synthetic", "checkpoint.save=none",
            "mixed_precision=fp16_mixed", "cluster.gpu=a100", f"cluster.gpus_per_node={NODE}", f"cluster.nodes={int(row['# GPUs']) // NODE}",
            "cluster.memory=4000GiB", f"train.micro_batch_size={row['micro batch']}", f"train.global_batch_size={row['global batch']}",
            f"model.tensor_model_parallel_size={row['tensor parallelism']}",
            f"model.pipeline_model_parallel_size={row['pipeline parallelism']}", "model.recompute_granularity=full",
            "model.recompute_method=uniform", "model.recompute_num_layers=1"]


def predicted(shardc, row, more, plan):
    """Milliseconds of a step; None if the recipe is refused."""
    sets = [f"--set={each}" for each in settings_of(row)]
    done = subprocess.run([shardc, "dump-plan", RECIPE, *sets, *more, "-o", plan], capture_output=True, text=True)
    return float(re.search(r"derived\.predicted\.step_ms = (\S+)", plan.read_text())[1]) if done.returncode == 0 else None


def main():
    shardc, path, *more = sys.argv[1:]
    rows = [row for row in csv.DictReader(open(path, encoding="utf-8-sig")) if row["# GPUs"]]
    with tempfile.TemporaryDirectory() as folder:
        for size, of in itertools.groupby(rows, lambda row: row["Parameters (billion)"]):
            found = []
            for row in of:
                ours = predicted(shardc, row, more, pathlib.Path(folder) / "a.plan")
                words = ", ".join(f"{short} {row[name]}" for short, name in (
                    ("tp", "tensor parallelism"), ("pp", "pipeline parallelism"), ("mbs", "micro batch")))
                if ours is not None:
                    found.append((ours, float(row["iteration time (ms)"]), words))
            chosen, best = min(found), min(found, key=lambda each: each[1])
            print(f"| {size}B | {row['# GPUs']} | {len(found)} | {chosen[2]} | {best[2]} | {chosen[1] / best[1]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
