#!/usr/bin/env python3
"""Compiles recipes that once broke something. Each must give a plan that the verifier accepts, or be refused by the
rule named here.

    faults.py SHARDC

Memory and time are limited, so a recipe that exhausts either fails. Exits with 1 if any recipe fails.
"""

import json
import os
import resource
import subprocess
import sys

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs")
MEMORY_BYTES, LIMIT_S = 2 << 30, 60
WITHOUT_HEAD = ["--disable-pass=fuse-loss-head", "--disable-pass=chunk-loss-head"]
# For each recipe: options of the command line, and the expected ids of errors.
RECIPES = {
    "A-211": ([], set()),  # FSDP2 with fewer rows than ranks
    "A-263": ([], set()),  # zero bubble with double buffers
    "A-5-boundary": ([], set()),  # zero bubble, gradients that are reduced in another type
    "A-658": ([], set()),  # full recomputation with biases and double buffers
    "A-684": ([], set()),
    "A-zb-boundary": ([], set()),
    "B-bad_alloc": ([], {"size-too-large"}),  # one stage for each of 10^9 layers
    "B-sigfpe": ([], {"unknown-section", "option-elsewhere", "foreign-setting", "size-too-large"}),
    "B-sigfpe-min": ([], {"size-too-large"}),  # the number of stages wraps to 0
    "comp-91": (["--enable-pass=delay-weight-grads"], set()),
    "comp-207": ([], set()),
    "comp-226": ([], set()),  # zero bubble with a recomputed feed-forward layer
    "comp-404": ([], set()),  # delayed fp8 with tensor parallelism
    "comp-1203": (WITHOUT_HEAD, set()),  # fp16 stages without the loss head's fusions
    "comp-3286": ([], set()),  # zero bubble, block recomputation, delayed fp8
    "comp-3753": ([], set()),
    "comp-5899": ([], set()),
    "comp-6433": ([], set()),
    "comp-8194": ([], set()),  # zero bubble with registered buffers
    "comp-8804": ([], set()),
    "gathered-again": ([], set()),  # a layer is gathered again while its first copy is read, with double buffers
    "kept-weights": ([], set()),  # FSDP2 that keeps weights gathered, with evaluations
    "many-microbatches": ([], set()),  # in a step, all listed by a schedule
    "scaled-balances": ([], set()),  # fp16 losses of routers, in stages without losses of tokens
    "counted-rows": ([], set()),  # rows of experts, and embedding rows that ranks exchange
    "evaluated-turns": ([], set()),  # a loop of 100 evaluations
    "further-positions-slices": ([], set()),  # positions of multi-token prediction move with the indices of two groups
    "further-positions-stages": ([], set()),  # sums of two stages over tensor-parallel ranks
    "further-zero-bubble": ([], set()),  # both parts of a backward pass contribute to a table
    "further-many": ([], set()),  # the verifier refused it as too much work
    "many-turns": ([], set()),  # loops over chunks of layers, with different predicates for each group of microbatches
}


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def fault(shardc, name, options, expected):
    """What is wrong with the recipe, or None."""
    path = os.path.join(INPUTS, f"{name}.recipe")
    command = [shardc, "dump-plan", path, "-o", os.devnull, "--diag-format=json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, preexec_fn=limit_memory)
    if done.returncode not in (0, 1):
        return f"status {done.returncode}: {done.stderr[-1000:]}"
    messages = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
    said = {message["id"] for message in messages if message["severity"] == "error"}
    if said != expected or (done.returncode == 0) != (not expected):
        return f"status {done.returncode}, errors {sorted(said)}, expected {sorted(expected)}\n{done.stderr[-1000:]}"
    return None


def main():
    found = {os.path.splitext(name)[0] for name in os.listdir(INPUTS) if name.endswith(".recipe")}
    wrong = [f"no expectation, or no file: {name}" for name in sorted(found ^ set(RECIPES))]
    for name, (options, expected) in RECIPES.items():
        why = fault(sys.argv[1], name, options, expected)
        if why:
            wrong.append(f"{name}: {why}")
    print("\n".join(wrong) or f"{len(RECIPES)} recipes")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
