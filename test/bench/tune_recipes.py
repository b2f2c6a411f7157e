#!/usr/bin/env python3
"""Searches layouts of every recipe of the repository with `shardc tune --free=all`, and checks what it finds.

    tune_recipes.py SHARDC RECIPES [--most=N] [NAME...]

No search may crash, and no bound may be above what its plan takes. Where no layout is faster than the recipe, the table says so. Recipes for the host are searched for H100s. In tests only a few recipes are searched, chosen by a
fixed seed, besides those of ALWAYS; all of them with SHARDC_LONG=1, or those whose names are given. Prints a table.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

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
# Layouts with one microbatch, of which gradients and activations are not there at once.
KNOWN = {"one-microbatch": ("llama3/llama3_70b_fsdp.recipe", [
    "--set=model.recompute_granularity=full", "--set=model.recompute_method=uniform", "--set=model.recompute_num_layers=1"])}
SAMPLE, SEED = 1, 55

def recipe(name):
    return (f"recipe x {{\n  model llama {{ {ALWAYS[name][0]} }}\n  cluster {{ gpu = h100  gpus_per_node = 4 }}\n"
            "  train { global_batch_size = 8 }\n}\n")


def runs_on_host(shardc, path):
    done = subprocess.run([shardc, "explain", str(path), "cluster.gpu"], capture_output=True, text=True)
    return done.returncode != 0 or re.search(r"= *(host|none)\b|not set", done.stdout) is not None


def wrong_bounds(listed):
    for line in listed.read_text().splitlines():
        row = json.loads(line)
        for bound, value in (("least_seconds", "seconds"), ("least_bytes", "bytes")):
            if row[bound] > row[value]:
                yield f"{bound} {row[bound]} is above {row[value]}: {' '.join(row['settings'])}"


def search(shardc, name, path, options, folder):
    """What is wrong, and a row of the table."""
    listed = folder / "list"
    listed.unlink(missing_ok=True)
    done = subprocess.run([shardc, "tune", str(path), *options, f"--list={listed}"], capture_output=True, text=True)
    error = re.search(r"error: .*\[([a-z0-9-]+)\]", done.stderr)
    if done.returncode == 1 and error and "internal error" not in done.stderr:
        return [], f"| {name} | | | | refused: {error[1]} |"  # a rule about the GPU, or nothing fits
    if done.returncode != 0 or not listed.exists():
        return [f"{name}: status {done.returncode}: {done.stderr[-600:]}"], ""
    wrong = [f"{name}: {what}" for what in wrong_bounds(listed)]
    own = re.search(r"the recipe itself: .*", done.stdout)
    isOwn = own is not None and "no other layout is faster" in own[0]
    counts = re.search(r"(\d+) combinations of settings\n  (\d+) compiled: (\d+) fit", done.stdout)
    best = json.loads(listed.read_text().splitlines()[0])
    words = "the recipe itself" if isOwn else " ".join(f"{column} {word}" for column, word in best["layout"].items()
                                                       if word not in ("1", "-", "exact", "bf16", "given", "none"))
    return wrong, f"| {name} | {int(counts[1]):,} | {counts[2]} | {best['seconds']:.3g} | {words or 'none of these'} |"


def main(words):
    options = [word for word in words[3:] if word.startswith("--")]
    names = [word for word in words[3:] if not word.startswith("--")]
    shardc, recipes = words[1], pathlib.Path(words[2])
    isLong = os.environ.get("SHARDC_LONG") == "1"
    options = ["--free=all", *(options or [f"--most={200 if isLong or names else 32}"])]
    found = {str(path.relative_to(recipes)): path for path in sorted(recipes.rglob("*.recipe"))
             if "overlays" not in path.parts and re.search(r"^recipe ", path.read_text(), re.M)}
    if not names:
        names = [*ALWAYS, *KNOWN, *(found if isLong else random.Random(SEED).sample(sorted(found), SAMPLE))]
    print("| recipe | layouts | compiled | step, s | the winner has |\n|---|--:|--:|--:|---|")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = pathlib.Path(folder) / "x.recipe"
            if name in ALWAYS:
                path.write_text(recipe(name))
                mine = ALWAYS[name][1] + options
            elif name in KNOWN:
                path, mine = recipes / KNOWN[name][0], KNOWN[name][1] + options
            else:
                path = found[name]
                mine = options + (["--set=cluster.gpu=h100"] if runs_on_host(shardc, path) else [])
            wrong, row = search(shardc, name, path, mine, pathlib.Path(folder))
            failed |= bool(wrong)
            print("\n".join(wrong + [row] if row else wrong), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
