#!/usr/bin/env python3
"""Compares the choice of `model.recompute_granularity = auto` with all other choices for a model of two layers. Needs
only Python.

    recompute_choices.py RECIPE [--set=path=value ...]

For several memory sizes, the choice must fit, and no choice that needs a hundredth less memory may be predicted to be
faster.
"""

import itertools
import json
import re
import subprocess
import sys

WAYS = ["none", "core_attn", "layernorm", "mlp", "core_attn+layernorm", "core_attn+mlp", "layernorm+mlp",
        "core_attn+layernorm+mlp", "full"]
WORSE = 0.01  # relative: what choices that are left out may save
GAPS = 0.003  # of memory: the address map has gaps, which no cost of a layer tells
BUDGETS = 6


def plan(*settings):
    """Device memory in bytes, milliseconds of a step, and the recomputed modules."""
    settings = ["model.num_layers=2", "model.recompute_granularity=auto", *settings]
    command = ["shardc", "dump-plan", *sys.argv[1:], *(f"--set={setting}" for setting in settings)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    arenas = re.search(r"^  arenas \{ state = (\d+)  work = (\d+)  sym = (\d+)", done.stdout, re.MULTILINE)
    lines = re.findall(r"^  (?:derived\.memory\.\w+ =|beside \{).*$", done.stdout, re.MULTILINE)
    beside = re.findall(r" = (\d+)", " ".join(lines))
    time = re.search(r"^  derived\.predicted\.step_ms = (\S+)$", done.stdout, re.MULTILINE)
    layers = re.search(r"^  model\.recompute_layers = (.*)$", done.stdout, re.MULTILINE)
    return sum(map(int, [*arenas.groups(), *beside])), float(time[1]), layers[1]


every = [plan(f"model.recompute_layers={json.dumps(ways)}") for ways in itertools.product(WAYS, repeat=2)]
best = []  # in the order of time, each needs less memory than those before
for choice in sorted(every, key=lambda choice: (choice[1], choice[0])):
    if not best or choice[0] < best[-1][0]:
        best.append(choice)
if len(best) < 4:
    sys.exit(f"only {len(best)} choices: {best}")
print(f"{len(best)} of {len(every)} choices are not worse than another one")
for index in sorted({i * (len(best) - 1) // (BUDGETS - 1) for i in range(BUDGETS)}):
    memory = best[index][0]
    time, layers = min((choice[1:] for choice in every if choice[0] <= memory * (1 - GAPS)), default=best[-1][1:])
    found = plan(f"cluster.memory={memory}")
    print(f"{memory} bytes: {found[2]} takes {found[1]} ms and {found[0]} bytes, {layers} takes {time} ms")
    if found[0] > memory or found[1] > time * (1 + WORSE):
        sys.exit("that is not the best")
