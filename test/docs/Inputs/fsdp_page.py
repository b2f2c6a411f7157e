#!/usr/bin/env python3
"""Compares the figures of docs/fsdp.md with the plans from which they come.

    fsdp_page.py SHARDC PAGE RECIPES [--check]

The text between `<!-- figures: NAME -->` and `<!-- end -->` is a table that follows from compiled plans. With --check
nothing is written, and an outdated table is an error.
"""

import os
import re
import subprocess
import sys

# What is compared: name, recipe, settings.
STRATEGY = "ddp.data_parallel_sharding_strategy="
HYBRID = ["ddp.num_distributed_optimizer_instances=2"]
ONE_NODE = [
    ("DDP", "llama3/llama3_8b.recipe", ["ddp.use_distributed_optimizer=false"]),
    ("distributed optimizer", "llama3/llama3_8b_distopt.recipe", []),
    ("FSDP, `optim_grads`", "llama3/llama3_8b_fsdp.recipe", [STRATEGY + "optim_grads"]),
    ("FSDP, `optim_grads_params`", "llama3/llama3_8b_fsdp.recipe", []),
    ("HSDP, two groups", "llama3/llama3_8b_fsdp.recipe", HYBRID),
    ("HFSDP, two groups", "llama3/llama3_8b_fsdp.recipe", [*HYBRID, "ddp.outer_dp_sharding_strategy=optim"]),
]
COMMON = ["train.micro_batch_size=1", "cluster.gpu=h200", "cluster.memory=1TiB", "model.recompute_granularity=full",
          "model.recompute_method=uniform", "model.recompute_num_layers=1"]
KEPT = ["params", "grads", "master_params", "optimizer_state"]
GIB = 1 << 30


def plan_page(shardc, path, settings):
    command = [shardc, "dump-plan", path]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def figures(text):
    """Bytes by purpose (kept and at the peak), in all, and sent in a step."""
    out = {"sent": 0}
    for line in text.splitlines()[1:]:
        if not line.startswith("//"):
            break
        purpose = re.match(r"//     (\w+) +(\d+) +(\d+) +\S+ \S+$", line)
        if purpose:
            out[purpose.group(1)] = int(purpose.group(2)) + int(purpose.group(3))
        arena = re.match(r"//     arena (state|work|sym) +(\d+) ", line)
        if arena:
            out["all"] = out.get("all", 0) + int(arena.group(2))
        traffic = re.match(r"//     (all_gather|reduce_scatter|all_reduce) .* (\d+) +\S+ \S+$", line)
        if traffic:
            out["sent"] += int(traffic.group(2))
    return out


def gib(count):
    return f"{count / GIB:.1f}"


def memory_table(shardc, recipes):
    lines = ["| on each GPU, GiB | weights | gradients | masters | moments | activations | gathered, in flight | in all "
             "| sent in a step |", "|---" + "|--:" * 8 + "|"]
    for name, recipe, settings in ONE_NODE:
        found = figures(plan_page(shardc, os.path.join(recipes, recipe), [*COMMON, *settings]))
        cells = [found.get(purpose, 0) for purpose in (*KEPT, "activations", "comm", "all", "sent")]
        lines.append(f"| {name} | " + " | ".join(gib(count) for count in cells) + " |")
    return lines


def growth_table(shardc, recipes):
    lines = ["| GPUs | 8 | 16 | 32 | 64 |", "|---|--:|--:|--:|--:|"]
    for name, recipe, settings in ONE_NODE:
        cells = []
        for nodes in (1, 2, 4, 8):
            text = plan_page(shardc, os.path.join(recipes, recipe),
                             [*COMMON, f"cluster.nodes={nodes}", "train.global_batch_size=128", *settings])
            cells.append(gib(figures(text)["all"]))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main():
    shardc, path, recipes = sys.argv[1:4]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    tables = {"memory": memory_table(shardc, recipes), "growth": growth_table(shardc, recipes)}
    new = text
    for name, lines in tables.items():
        pattern = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(new):
            sys.exit(f"{path} has no table '{name}'")
        new = pattern.sub(lambda match, lines=lines: match.group(1) + "\n".join(lines) + "\n" + match.group(2), new)
    if "--check" not in sys.argv:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)
    elif new != text:
        sys.exit(f"{path} has figures that the plans do not; write it anew with {os.path.basename(__file__)}")


if __name__ == "__main__":
    main()
