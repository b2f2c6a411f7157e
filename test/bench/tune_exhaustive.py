#!/usr/bin/env python3
"""Compares the search of `shardc tune` with one that compiles every layout.

    tune_exhaustive.py SHARDC [--record FILE HARDWARE] [NAME...]

For each of PROBLEMS, the step of the winner may take at most 1 % longer than that of the fastest layout of all. Tests
run only the problems of QUICK; SHARDC_LONG=1, --record or names select all or others. --record writes the processor
seconds of both searches. No estimate may exceed the time of its layout by more than 2 %.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

import record_figure


def model(family="llama", layers=4, hidden=512, heads=8, sequence=512, more=""):
    return (f"model {family} {{ num_layers = {layers} hidden_size = {hidden} num_attention_heads = {heads} "
            f"seq_length = {sequence} vocab_size = 32_000 {more} }}")


EXPERTS = "ffn_hidden_size = 1024 num_moe_experts = 8 moe_router_topk = 2"
OVERLAP = (f"{EXPERTS} expert_model_parallel_size = 2 moe_token_dispatcher_type = alltoall "
           "overlap_moe_expert_parallel_comm = true")
FEW = ["--micro-batch-max=1"]
ONE_STAGE = ["--set=model.pipeline_model_parallel_size=1"]
NO_CONTEXT = ["--set=model.context_parallel_size=1"]
LOWER, UPPER = 'freeze = ["embedding", "layers.0-1"]', 'freeze = ["layers.2-3", "head"]'
KINDS = 'freeze = ["layers.1.qkv", "layers.0-2.feed_forward", "base.experts", "norm"]'
NO_FSDP = ["--set=ddp.data_parallel_sharding_strategy=none"]

# NAME: a model, GPUs, sequences of a step, options of tune.
PROBLEMS = {
    "dense-1": (model(), 1, 8, ["--micro-batch-max=8"]),
    "dense-1-memory": (model(hidden=1024, sequence=4096), 1, 8, ["--memory=4"]),
    "dense-1-fp8": (model(hidden=2048, heads=16, sequence=2048), 1, 4, ["--allow=fp8"]),
    "dense-2": (model(), 2, 4, []),
    "dense-2-memory": (model(hidden=1024, sequence=2048), 2, 4, ["--memory=3"]),
    "dense-2-long": (model(sequence=16384), 2, 2, []),
    "gqa-2": (model(hidden=1024, more="num_query_groups = 2"), 2, 4, []),
    "gpt-2": (model("gpt", more="hidden_dropout = 0 attention_dropout = 0"), 2, 8, []),
    "dense-4": (model(), 4, 8, FEW),
    "dense-4-fp8": (model(hidden=1024), 4, 8, FEW + ONE_STAGE + ["--allow=fp8"]),
    "wide-4-memory": (model(hidden=4096, heads=32), 4, 8, FEW + ["--memory=9"]),
    "gqa-4-long": (model(sequence=8192, more="num_query_groups = 4"), 4, 4, FEW + ONE_STAGE),
    "stages-4": (model(layers=8), 4, 16, FEW + NO_CONTEXT + ["--set=model.tensor_model_parallel_size=1"]),
    "stages-2-head": (model(layers=6, hidden=256, heads=4), 2, 16, FEW + ["--set=model.pipeline_model_parallel_size=2"]),
    "two-nodes": (model(hidden=1024), "2x2", 8, FEW + ONE_STAGE),
    "two-nodes-stages": (model(layers=8), "2x2", 16, FEW + NO_CONTEXT),
    "experts-2": (model(more=EXPERTS), 2, 4, FEW),
    "experts-4": (model(more=EXPERTS), 4, 8, FEW + ONE_STAGE + NO_CONTEXT),
    "experts-4-memory": (model(hidden=1024, more=EXPERTS), 4, 8, FEW + ONE_STAGE + NO_CONTEXT + ["--memory=4"]),
    "experts-overlap": (model(layers=8, sequence=4096, more=OVERLAP), "4x1", 16, FEW + NO_CONTEXT + ["--set=model.tensor_model_parallel_size=1"]),
    "frozen-2": (model(more=LOWER), 2, 4, []),
    "frozen-2-long": (model(hidden=1024, sequence=4096, more=KINDS), 2, 4, FEW),
    "frozen-4": (model(hidden=1024, more=UPPER), 4, 8, FEW + ONE_STAGE),
    "frozen-4-kept": (model(hidden=2048, heads=16, more=LOWER), 4, 8, FEW + ONE_STAGE + ["--set=ddp.keep_frozen=always"]),
    "frozen-4-fits": (model(hidden=2048, heads=16, more=KINDS), 4, 8, FEW + ONE_STAGE + ["--set=ddp.keep_frozen=if_fits"]),
    "frozen-stages": (model(layers=8, more=LOWER), 4, 16, FEW + NO_CONTEXT + ["--set=model.tensor_model_parallel_size=1"]),
    "frozen-nodes": (model(layers=8, more=KINDS), "2x2", 16, FEW + NO_CONTEXT),
    "frozen-experts": (model(more=f"{EXPERTS} {KINDS}"), 2, 4, FEW),
    "deadline": (model(hidden=1024), 2, 8, FEW + NO_CONTEXT + ["--gpus=2..8", "--deadline=1"]),
}
QUICK = ["dense-1-memory", "dense-2-long", "gqa-2", "experts-2", "experts-overlap", "frozen-2"]


def recipe(name):
    text, gpus, batch, _ = PROBLEMS[name]
    nodes, _, in_node = str(gpus).rpartition("x")
    steps = 100_000 if name == "deadline" else 100
    return f"""recipe problem {{
  {text}
  cluster {{ gpu = h200 nodes = {nodes or 1} gpus_per_node = {in_node} }}
  mixed_precision = bf16_mixed
  dataset synthetic {{}}
  optimizer adam {{ lr = 1e-3 }}
  train {{ global_batch_size = {batch} train_iters = {steps} }}
}}
"""


def search(shardc, path, options, listed):
    """What tune printed, the layouts that it found, and the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([shardc, "tune", path, *options, f"--list={listed}", "--force", "--most=1000000"], capture_output=True,
                          text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        return done.stderr, [], 0
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.stdout, [json.loads(line) for line in listed.read_text().splitlines()], seconds


def compare(shardc, name, folder):
    """What is wrong, and the fields of the figure."""
    path = folder / f"{name}.recipe"
    path.write_text(recipe(name))
    options = PROBLEMS[name][3]
    said, found, seconds = search(shardc, path, options, folder / "found")
    said_of_all, everything, seconds_of_all = search(shardc, path, [*options, "--exhaustive"], folder / "all")
    if not found or not found[0]["fits"]:
        return [f"{name}: nothing was found\n{said}{said_of_all}"], {}
    wrong = []
    if found[0]["seconds"] > 1.01 * everything[0]["seconds"]:
        wrong.append(f"{name}: found {found[0]}, but there is {everything[0]}")
    wrong += [f"{name}: estimated to take at least {row['estimated_seconds']} s: {row}" for row in everything
              if row["estimated_seconds"] > 1.02 * row["seconds"]]
    all_layouts, compiled = re.search(r"(\d+) combinations of settings\n  (\d+) compiled", said).groups()
    best = found[0]["layout"]
    words = " ".join(f"{column} {word}" for column, word in best.items() if word not in ("1", "-", "exact", "bf16", "given", "none"))
    more = {"layouts": f"{int(all_layouts):,}", "compiled": f"{int(compiled):,}",
            "estimate of the winner": f"{found[0]['estimated_seconds'] / found[0]['seconds']:.3f}", "the winner has": words or "none of these"}
    return wrong, {"ours": round(seconds, 2), "peer": round(seconds_of_all, 2), "more": more}


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shardc")
    parser.add_argument("names", nargs="*")
    record_figure.add_argument(parser)
    arguments = parser.parse_args(words)
    names = arguments.names or (list(PROBLEMS) if arguments.record or os.environ.get("SHARDC_LONG") == "1" else QUICK)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            wrong, row = compare(arguments.shardc, name, pathlib.Path(folder))
            failed |= bool(wrong)
            print("\n".join(wrong) if wrong else f"{name}: the winner is as fast", flush=True)
            if arguments.record and not wrong:
                file, hardware = arguments.record
                record_figure.record(file, case=name, measure="processor s of a search", peer_is="all layouts compiled", ratio=None,
                                     hardware=hardware, table="searches", **row)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
