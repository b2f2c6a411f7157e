#!/usr/bin/env python3
"""Runs random recipes on the host: what `shardc check --can-run` accepts must run to its end.

    run.py SHARDC [--count=N] [--first=SEED] [--jobs=N]

A recipe is a small model with settings that fit it, a strategy, a precision, and some of all options, with values at
the ends of their ranges. A run may diverge if it reports that, but it may not be refused. Exits with 1 if one is
refused, and prints the recipe. Without --count it takes 100 recipes, and 100,000 with SHARDC_LONG=1.
"""

import collections
import os
import random
import re
import subprocess
import sys
import tempfile

from batches import parse_options, show, try_all
from recipes import OPTIONS, value_of, write

BATCH = 25  # recipes per task
LIMIT_S = 300  # a watchdog; runs take a fraction of a second
# Not drawn: names of files, checkpoints or machines that do not exist, and the sizes of model and batch, which are
# drawn together below.
NEVER = re.compile(r"cluster\.|env\.|model\.(num_layers|hidden_size|num_attention_heads|seq_length|vocab_size|num_query_groups)$|"
                   r"train\.(train_iters|train_samples|global_batch_size|micro_batch_size|num_epochs)$|dataset\.(kind|.*path.*|blend)|"
                   r"checkpoint\.(load|pretrained_checkpoint|.*_dir|.*_path)$|dist\.rendezvous_port$|model$")
# Messages of a run that diverges.
DIVERGED = re.compile(r"not finite|non-finite|is nan|is -?inf", re.IGNORECASE)


def extreme(option, random_):
    """A value at an end of the option's range, or one that `recipes` draws."""
    low, high = option.bounds()
    if option.kind == "float":
        ends = [end for end in (low, high) if end is not None]
        return float(random_.choice(ends + [0.0, 1.0, 1e-5, 1e5] if high is None else ends + [(low + high) / 2]))
    if option.kind == "int" and random_.random() < 0.7:
        return random_.choice([int(low or 0), int(low or 0) + 1, 7, 64 if high is None else int(high)])
    return value_of(option, random_)


def model(random_):
    heads = random_.choice([1, 2, 4, 6])
    width = heads * random_.choice([2, 4, 8])
    out = {"model": random_.choice(["gpt", "gpt", "llama", "llama", "qwen2", "mistral"]),
           "model.num_layers": random_.randint(1, 3), "model.hidden_size": width, "model.num_attention_heads": heads,
           "model.num_query_groups": random_.choice([g for g in range(1, heads + 1) if heads % g == 0]),
           "model.seq_length": random_.choice([1, 4, 8, 10]), "model.vocab_size": random_.choice([16, 17, 50]),
           "model.ffn_hidden_size": random_.choice([8, 24, 33]), "model.kv_channels": random_.choice([2, 4, width // heads]),
           "model.make_vocab_size_divisible_by": random_.choice([1, 8, 128])}
    return out


def strategy(random_):
    sharding = random_.choice(["no_shard", "optim", "optim_grads", "optim_grads_params"])
    return random_.choice([
        {}, {"ddp.use_distributed_optimizer": True}, {"dist.use_torch_fsdp2": True},
        {"dist.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": sharding},
        {"dist.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": sharding}, hybrid(random_)])


def hybrid(random_):
    """Two instances of the data-parallel group. Between them, state is replicated or sharded."""
    outer = random_.choice(["no_shard", "optim"])
    inner = random_.choice(["no_shard", "optim", "optim_grads", "optim_grads_params"])
    return {"dist.use_megatron_fsdp": True, "ddp.num_distributed_optimizer_instances": 2, "ddp.outer_dp_sharding_strategy": outer,
            "ddp.data_parallel_sharding_strategy": inner if outer == "no_shard" else "optim_grads_params"}


def precision(random_):
    types = ["auto", "fp32", "bf16", "fp16"]
    out = random_.choice([{}, {"mixed_precision": "bf16_mixed"}, {"mixed_precision": "fp16_mixed"}, {"model.bf16": True, "model.params_dtype": "bf16"},
                          {"model.bf16": True}])
    for path in ("main_params_dtype", "main_grads_dtype", "grad_comm_dtype"):
        if random_.random() < 0.25:
            out[f"ddp.megatron_fsdp_{path}"] = random_.choice(types)
    return out


def draw(seed):
    random_ = random.Random(seed)
    ranks, micro = random_.choice([1, 2, 2, 3, 4]), random_.choice([1, 2])
    written = {"cluster.gpu": "host", "cluster.gpus_per_node": ranks, "train.micro_batch_size": micro,
               "train.global_batch_size": micro * ranks * random_.choice([1, 2, 3]), "train.train_iters": random_.randint(1, 4),
               "dataset.kind": "synthetic", "optimizer.lr": 1e-3, "optimizer.optimizer": random_.choice(["adam", "adam", "sgd"])}
    for part in (model, strategy, precision):
        written.update(part(random_))
    pool = sorted(path for path in OPTIONS if not NEVER.match(path))
    likely = [path for path in pool if OPTIONS[path].status == "Executed"]
    for _ in range(random_.randint(0, 6)):
        path = random_.choice(likely if random_.random() < 0.8 else pool)
        written[path] = extreme(OPTIONS[path], random_)
    lines = "".join(f"  {path} = {write(OPTIONS[path], value)}\n" for path, value in written.items())
    return "recipe r%d {\n%s}\n" % (seed, lines)


def call(folder, *command):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, errors="replace")


def try_batch(shardc, seeds):
    found, counts = [], collections.Counter()
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            text = draw(seed)
            with open(os.path.join(folder, "r.recipe"), "w", encoding="utf-8") as file:
                file.write(text)
            checked = call(folder, shardc, "check", "--can-run", "r.recipe")
            if checked.returncode not in (0, 1):
                found.append((seed, text, f"check ends with {checked.returncode}\n{checked.stderr[-2000:]}"))
            if checked.returncode != 0:
                counts["refused"] += 1
                continue
            ran = call(folder, shardc, "run", "r.recipe")
            said = ran.stdout + ran.stderr
            if ran.returncode == 0:
                counts["run"] += 1
            elif DIVERGED.search(said):
                counts["diverged"] += 1
            else:
                found.append((seed, text, f"run ends with {ran.returncode}\n{said[-2000:]}"))
    return found, counts


def main():
    options = parse_options("runs random recipes that shardc check accepts", 100)
    found, counts = try_all(options, try_batch, BATCH)
    show(options, found)
    print(f"{options.count} recipes from seed {options.first}: {counts['run']} run, {counts['diverged']} diverge, "
          f"{counts['refused']} are refused by check, {len(found)} accepted ones do not run")
    sys.exit(1 if found or counts["run"] < options.count // 5 else 0)


if __name__ == "__main__":
    main()
