#!/usr/bin/env python3
"""Searches layouts for every recipe of the repository with `shardc tune --free=all`, and checks the results.

    tune_recipes.py SHARDC RECIPES [--most=N] [--jobs=N] [--seconds=N] [--deadline=N] [--all]
                    [NAME...]

No search may crash, and no winner may be slower than the recipe itself, if that fits, by the predictions of `shardc
fit`. Recipes for the host are searched for H100s. Tests search only a few recipes, chosen by a fixed seed, and those of
ALWAYS; `--all` or SHARDC_LONG=1 searches all, and names select some. `--jobs` recipes are searched in parallel, each in
a process with one thread; by default one per processor, the longest first. A search that takes longer than `--seconds`
is ended and counted as unfinished; `--deadline` seconds after the start, all are. The row of a recipe and its errors
are printed as soon as its search has ended, and a line of counts at the end. The exit status is 1 if there is any
error.
"""

import collections
import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

# Stages that differ in their layers, by each of the options that make them so.
LLAMA = "num_layers = 3 num_attention_heads = 4 hidden_size = 32 pipeline_model_parallel_size = 2"
ALWAYS = {
    # The input tune-pinned.recipe of the faults that were reported.
    "tune-pinned": (LLAMA + " num_layers_in_first_pipeline_stage = 1", []),
    "last": (LLAMA + " num_layers_in_last_pipeline_stage = 1", []),
    "layout": (LLAMA + ' pipeline_model_parallel_layout = "Et|ttL"', []),
    "counted": (LLAMA + " account_for_embedding_in_pipeline_split = true", []),
    "zero-bubble": (LLAMA + " num_layers_in_last_pipeline_stage = 1 pipeline_schedule = zero_bubble", []),
    "first-in-chunks": ("num_layers = 6 num_attention_heads = 4 hidden_size = 32 pipeline_model_parallel_size = 2 "
                        "virtual_pipeline_model_parallel_size = 2 num_layers_in_first_pipeline_stage = 2", []),
}
# Domains of NVLink that are larger than nodes, and instances that divide the state of FSDP alone.
RACK = """recipe x {
  model mixtral { num_layers = 8  hidden_size = 2048  ffn_hidden_size = 8192  num_attention_heads = 16 }
  cluster { gpu = gb300  gpus_per_node = 4  nodes = 4 }
  ddp { outer_dp_sharding_strategy = optim  megatron_fsdp_main_grads_dtype = bf16 }
  train { global_batch_size = 32 }
}
"""
ALWAYS["rack"] = (RACK, ["--micro-batch-max=1", "--set=model.context_parallel_size=1",
                         "--set=model.recompute_granularity=none", "--set=model.tensor_model_parallel_size=1"])
# Layers of three kinds, of which few stand for all.
KINDS = """recipe x {
  model mixtral {
    num_layers = 16  num_attention_heads = 4  num_query_groups = 2  hidden_size = 32  num_moe_experts = 4
    window_size = [63, 0]
    moe_layer_freq = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]  window_attn_skip_freq = [4]
  }
  cluster { gpu = h100  gpus_per_node = 4 }
  train { global_batch_size = 8 }
}
"""
ALWAYS["kinds"] = (KINDS, [])
# The same with one microbatch, and with layers that are recomputed, so that gradients take the most.
ALWAYS["rack-one"] = (RACK, ["--micro-batch-max=1", "--set=model.context_parallel_size=1", "--set=train.global_batch_size=16",
                             "--set=model.tensor_model_parallel_size=1", "--set=model.pipeline_model_parallel_size=1",
                             "--set=model.recompute_granularity=full", "--set=model.recompute_method=uniform",
                             "--set=model.recompute_num_layers=1"])
RECIPE_70B = "llama3/llama3_70b_fsdp.recipe"
KNOWN = {
    # Layouts with one microbatch, of which gradients and activations are not there at once.
    "one-microbatch": (RECIPE_70B, ["--set=model.recompute_granularity=full", "--set=model.recompute_method=uniform",
                                    "--set=model.recompute_num_layers=1"]),
    # With what a person finds: attention recomputed in as many layers as the memory needs, which is all there is.
    "by-hand": (RECIPE_70B, ["--set=cluster.memory=79.1GiB", "--set=model.tensor_model_parallel_size=1", "--set=model.pipeline_model_parallel_size=1"]),
}
BY_HAND = {"by-hand": [
    "--set=model.recompute_granularity=auto", "--set=model.recompute_method=none", "--set=model.recompute_num_layers=none",
    '--set=model.recompute_layers=["56*core_attn", "24*none"]', "--set=ddp.grad_reduce_in_fp32=false"]}
SAMPLE, SEED = 1, 55

def recipe(name):
    if name in ("rack", "rack-one", "kinds"):
        return ALWAYS[name][0]
    return (f"recipe x {{\n  model llama {{ {ALWAYS[name][0]} }}\n  cluster {{ gpu = h100  gpus_per_node = 4 }}\n"
            "  train { global_batch_size = 8 }\n}\n")


def runs_on_host(shardc, path):
    done = subprocess.run([shardc, "explain", str(path), "cluster.gpu"], capture_output=True, text=True)
    gpu = re.match(r"cluster\.gpu = (\w+)", done.stdout)
    return gpu is None or gpu[1] in ("host", "none")


def own_seconds(shardc, path, options):
    """The predicted step of the recipe itself; nothing if it does not fit or compile."""
    sets = [option for option in options if option.startswith("--set")]
    done = subprocess.run([shardc, "fit", str(path), *sets, "--json", "--seconds=1"], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {"fits": False}
    return found.get("step_s") if found["fits"] else None


def search(shardc, name, path, options, limits):
    """Errors, the outcome of the search, and a row of the table. Limits: seconds of one search, and the time at which
    all end."""
    begin = time.monotonic()
    seconds = min(limits[0], limits[1] - begin)
    if seconds <= 0:
        return [], "unfinished", f"| {name} | | | | | not begun | 0 |"
    if name not in ALWAYS and name not in KNOWN and runs_on_host(shardc, path):
        options = ["--set=cluster.gpu=h100", *options]
    with tempfile.TemporaryDirectory() as folder:
        listed = pathlib.Path(folder) / "list"
        try:
            done = subprocess.run([shardc, "tune", str(path), *options, f"--list={listed}"], capture_output=True,
                                  text=True, timeout=None if math.isinf(seconds) else seconds)
        except subprocess.TimeoutExpired:
            return [], "unfinished", f"| {name} | | | | | not finished | {seconds:.0f} |"
        rows = [json.loads(line) for line in listed.read_text().splitlines()] if listed.exists() else []
    error = re.search(r"error: .*\[([a-z0-9-]+)\]", done.stderr)
    if done.returncode == 1 and error and "internal error" not in done.stderr:
        # A rule refuses the GPU, or no layout fits.
        own = own_seconds(shardc, path, options)
        wrong = [f"{name}: nothing was found, and the recipe's own step takes {own} s"] if own else []
        return wrong, "refused", f"| {name} | | | | | refused: {error[1]} |"
    if done.returncode != 0 or not rows:
        return [f"{name}: status {done.returncode}: {done.stderr[-600:]}"], "crashed", f"| {name} | | | | | failed |"
    wrong = []
    own, best = own_seconds(shardc, path, options), rows[0]
    if own and best["seconds"] > own * (1 + 1e-9):
        wrong.append(f"{name}: the winner takes {best['seconds']} s, and the recipe {own} s")
    hand = own_seconds(shardc, path, options + BY_HAND[name]) if name in BY_HAND else None
    if name in BY_HAND and (hand is None or best["seconds"] > hand * (1 + 1e-9)):
        wrong.append(f"{name}: the winner takes {best['seconds']} s, and the layout by hand {hand}")
    counts = re.search(r"(\d+) combinations of settings\n  (\d+) compiled: (\d+) fit", done.stdout)
    words = "the recipe itself" if not best["settings"] else " ".join(
        f"{column} {word}" for column, word in best["layout"].items()
        if word not in ("1", "-", "exact", "bf16", "given", "none"))
    took = time.monotonic() - begin
    gain = f"{own / best['seconds']:.3f}" if own else "-"
    return wrong, "searched", (f"| {name} | {int(counts[1]):,} | {counts[2]} | {best['seconds']:.4g} | {gain} | "
                               f"{words or 'none of these'} | {took:.0f} |")


def length(path):
    """By which searches are ordered: of models with experts there are more layouts, and layers take longer to compile."""
    family = "".join(other.read_text() for other in path.parent.glob("*.recipe"))
    return "expert" in family, max(map(int, re.findall(r"num_layers = (\d+)", family)), default=0)


def inputs(recipes, names, isAll, folder):
    """Of each search: a name, a recipe and options."""
    found = {str(path.relative_to(recipes)): path for path in sorted(recipes.rglob("*.recipe"))
             if "overlays" not in path.parts and re.search(r"^recipe ", path.read_text(), re.M)}
    sample = found if isAll else random.Random(SEED).sample(sorted(found), SAMPLE)
    for name in names or [*ALWAYS, *KNOWN, *sample]:
        if name in ALWAYS:
            path = folder / f"{name}.recipe"
            path.write_text(recipe(name))
            yield name, path, ALWAYS[name][1]
        elif name in KNOWN:
            yield name, recipes / KNOWN[name][0], KNOWN[name][1]
        else:
            yield name, found[name], []


def main(words):
    values = dict(word[2:].partition("=")[::2] for word in words[3:] if word.startswith("--"))
    names = [word for word in words[3:] if not word.startswith("--")]
    shardc, recipes = words[1], pathlib.Path(words[2])
    isAll = "all" in values or os.environ.get("SHARDC_LONG") == "1"
    most = values.get("most", "200" if isAll or names else "32")
    options = ["--free=all", "--threads=1", f"--most={most}"]
    print("| recipe | layouts | compiled | step, s | times as fast as the recipe | the winner has | seconds |\n"
          "|---|--:|--:|--:|--:|---|--:|", flush=True)
    failures, ends = 0, collections.Counter()
    limits = float(values.get("seconds", "inf")), time.monotonic() + float(values.get("deadline", "inf"))
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(int(values.get("jobs", os.cpu_count()))) as pool:
        found = sorted(inputs(recipes, names, isAll, pathlib.Path(folder)), key=lambda one: length(one[1]), reverse=True)
        searches = [pool.submit(search, shardc, name, path, own + options, limits) for name, path, own in found]
        for done in concurrent.futures.as_completed(searches):
            wrong, end, row = done.result()
            failures += len(wrong)
            ends[end] += 1
            print(*[row, *wrong], sep="\n", flush=True)
    print(f"\n{len(searches)} recipes: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())) +
          f"; {failures} violations")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
