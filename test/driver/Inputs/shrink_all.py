"""Shrinks every recipe of a folder to a few ranks, and compares each copy with its recipe.

    shrink_all.py RECIPES WORK [--train=N]

A copy must pass `check` if its recipe does, and `check --can-run` if its recipe does. It must have every option of its
recipe with the same value, except for sizes, counts and folders. Formatting must not change it, and its plan must
compile if the recipe's does. N random copies of those that can run train two steps. Every second recipe has a copy for
one of the numbers of ranks, in turn; with SHARDC_LONG=1, each recipe has copies for all.
"""

import concurrent.futures
import json
import os
import random
import re
import subprocess
import sys

RANKS = (16, 2)

# What a copy may change: sizes, the mesh, counts of sequences and steps, folders.
CHANGES = re.compile(r"""
    model[.](num_layers|hidden_size|num_attention_heads|num_query_groups|kv_channels|(moe_)?ffn_hidden_size|seq_length
      |max_position_embeddings|vocab_size|moe_shared_expert_intermediate_size|num_moe_experts|moe_router_(topk|num_groups|group_topk)
      |(moe_layer|short_conv)_freq|hybrid_layer_pattern|(q|kv)_lora_rank|qk_head_dim|qk_pos_emb_head_dim|v_head_dim|window_size|attention_chunk_size|attn_floor_scale|recompute_(num_)?layers
      |num_layers_in_(first|last)_pipeline_stage|(virtual_)?pipeline_model_parallel_size
      |(tensor|expert)_model_parallel_size|(expert_tensor|context)_parallel_size)
  | cluster[.](nodes|gpus_per_node) | ddp[.]num_distributed_optimizer_instances | train[.](micro_batch_size|global_batch_size|train_iters)
  | scheduler[.](lr_warmup_iters|lr_decay_iters) | validation[.](eval_interval|eval_iters) | logger[.]log_interval
  | checkpoint[.](save|load|save_interval) | dataset[.](seq_length)""", re.VERBOSE)


def run(*command, ok=(0,)):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in ok:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}ended with {done.returncode}")
    return done


def options(recipe):
    """The effective options of a recipe."""
    text = run("shardc", "dump-plan", recipe, "--print-after=adjust", ok=(0, 1))
    found, section = {}, ""
    for line in text.stdout.splitlines():
        if match := re.fullmatch(r"  (\w+)( .*)? \{", line):
            section = match[1]
            if match[2]:
                found[section] = match[2].strip()
        elif match := re.fullmatch(r"    (\w+) = (.*)", line):
            found[f"{section}.{match[1]}"] = match[2]
    if len(found) < 10:
        raise AssertionError(f"{recipe}: no options in\n{text.stdout}{text.stderr}")
    return found


def compare(recipe, copy, said):
    """Options of the recipe that the copy has lost without a word."""
    before, after = options(recipe), options(copy)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name) and not CHANGES.fullmatch(name) and f"'{name}'" not in said:
            raise AssertionError(f"{recipe}: '{name}' is {before.get(name)}, and {after.get(name)} in\n{open(copy).read()}")


def shrink(recipe, entry, folder, ranks):
    """Shrinks a recipe to `ranks` ranks and checks the copy, whose path is returned."""
    copy = os.path.join(folder, f"{os.path.basename(recipe)[:-len('.recipe')]}_{ranks}.recipe")
    said = run("shardc", "shrink", recipe, f"--ranks={ranks}", "-o", copy, "-Wno-advice").stderr
    run("shardc", "fmt", "--check", copy)
    compare(recipe, copy, said)
    if entry["runs"]:
        run("shardc", "check", "--can-run", copy)
        plan = run("shardc", "dump-plan", copy, "-o", copy + ".plan")
        assert os.path.getsize(copy + ".plan") > 0, plan.stderr
    return copy


def main():
    recipes, folder = sys.argv[1:3]
    train = int(next((a.split("=")[1] for a in sys.argv[3:] if a.startswith("--train=")), "0"))
    os.makedirs(folder, exist_ok=True)
    listed = json.loads(run("shardc", "recipes", recipes, "--json").stdout)
    whole = os.environ.get("SHARDC_LONG") == "1"
    jobs = [(os.path.join(recipes, entry["file"]), entry, ranks) for number, entry in enumerate(listed if whole else listed[::2])
            for ranks in sorted({min(ranks, entry["gpus"]) for ranks in (RANKS if whole else RANKS[number % 2:][:1])})]
    assert len(jobs) > (150 if whole else 75), len(jobs)
    def tried(job):
        try:
            return shrink(job[0], job[1], folder, job[2]), ""
        except AssertionError as error:
            return "", str(error)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(tried, jobs))
    if failures := [failure for _, failure in done if failure]:
        sys.exit("\n".join(failures) + f"\n{len(failures)} of {len(jobs)} copies failed")
    copies = [copy for copy, _ in done]
    runnable = [copy for copy, job in zip(copies, jobs) if job[1]["runs"]]
    for copy in random.Random(5).sample(runnable, train):
        ranks = copy[:-len(".recipe")].rsplit("_", 1)[1]
        done = run("shardc", "run", copy, f"--simulate-ranks={ranks}", "--set", "train.train_iters=2",
                   "--set", "checkpoint.save=none")
        assert "done after 2 of 2 steps" in done.stdout, done.stdout + done.stderr
    print(f"{len(copies)} copies, of which {len(runnable)} run; {train} trained")


main()
