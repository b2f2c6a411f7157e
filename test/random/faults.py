#!/usr/bin/env python3
"""Compiles recipes that once broke something: each gives a plan that verifies, or is refused by the rule named here.

    faults.py SHARDC

Memory and time are limited, so that a recipe whose sizes fill either is a fault. Exits with 1 if any is one.
"""

import json
import os
import resource
import subprocess
import sys

INPUTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs")
MEMORY_BYTES, LIMIT_S = 2 << 30, 60
WITHOUT_HEAD = ["--disable-pass=fuse-loss-head", "--disable-pass=chunk-loss-head"]
# Options of the command line, and the ids of the errors.
RECIPES = {
    "A-211": ([], set()),  # FSDP2 with fewer rows than ranks
    "A-263": ([], set()),  # zero bubble with double buffers
    "A-5-boundary": ([], set()),  # zero bubble, gradients that are reduced in another type
    "A-658": ([], set()),  # full recomputation with biases and double buffers
    "A-684": ([], set()),
    "A-zb-boundary": ([], set()),
    "B-bad_alloc": ([], {"size-too-large"}),  # a stage for each of 10^9 layers
    "B-sigfpe": ([], {"unknown-section", "option-elsewhere", "unknown-option", "size-too-large"}),
    "B-sigfpe-min": ([], {"size-too-large"}),  # stages whose number wraps to 0
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
    "gathered-again": ([], set()),  # a layer, while its first copy is read, with double buffers
    "kept-weights": ([], set()),  # FSDP2 that keeps weights gathered, with evaluations
    "many-microbatches": ([], set()),  # of a step: a schedule lists them all
    "scaled-balances": ([], set()),  # losses of routers in fp16, in stages that add no losses of tokens
    "counted-rows": ([], set()),  # rows of experts, beside embedding rows that ranks exchange
    "evaluated-turns": ([], set()),  # of 100 evaluations
    "further-positions-slices": ([], set()),  # positions of multi-token prediction move with the indices of two groups
    "further-positions-stages": ([], set()),  # which two stages sum over tensor-parallel ranks, each its own
    "further-zero-bubble": ([], set()),  # contributions to a table in both parts of a backward pass
    "further-many": ([], set()),  # which the verifier took for too much work
    "many-turns": ([], set()),  # of chunks of layers: each group of microbatches has predicates of its own
}


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def fault(shardc, name, options, expected):
    """What is wrong, or None."""
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
    found = {os.path.splitext(name)[0] for name in os.listdir(INPUTS)}
    wrong = [f"no expectation, or no file: {name}" for name in sorted(found ^ set(RECIPES))]
    for name, (options, expected) in RECIPES.items():
        why = fault(sys.argv[1], name, options, expected)
        if why:
            wrong.append(f"{name}: {why}")
    print("\n".join(wrong) or f"{len(RECIPES)} recipes")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
