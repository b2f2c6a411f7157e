#!/usr/bin/env python3
"""Runs one plan under several switches, alternately on one machine, to measure the cost or gain of each switch.

    run_variants.py SHARDC_RUN PLAN [--rounds=2] [--last=0.5] [--limit=120] NAME='VARIABLE=value --option' ...

For example:

    run_variants.py build/release/bin/shardc-run P.plan plain= own=SHARDC_DEPENDENT_LAUNCHES=1 far=--nodes-ahead=0

Prints for each switch, over the last share of the steps of all rounds: the mean of tokens/s and its range over rounds,
and the medians of host time and waits. Losses of the last step are printed to show that no switch changes them beyond
rounding. A run that fails, or takes more than --limit seconds, is reported and not included; the exit status is then 1.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc_run", type=pathlib.Path)
    parser.add_argument("plan", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--last", type=float, default=0.5)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("variants", nargs="+")
    return parser.parse_args()


def run(options, words, folder):
    """The metrics of the last steps of one run; None if it fails."""
    metrics = folder / "m.jsonl"
    sets = [word for word in words if re.match(r"[A-Z_]+=", word)]
    environment = {**os.environ, **dict(word.split("=", 1) for word in sets)}
    arguments = [word for word in words if word not in sets]
    command = ["timeout", "--kill-after=10", str(options.limit), options.shardc_run, f"--metrics={metrics}", *arguments, options.plan]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        print(f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}", flush=True)
        return []
    steps = [step for step in map(json.loads, metrics.read_text().splitlines()) if "tokens_per_s" in step]
    return steps[-max(int(len(steps) * options.last), 1):]


def main():
    options = parse()
    variants = {name: words.split() for name, words in (variant.split("=", 1) for variant in options.variants)}
    found = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name, words in variants.items():
                found[name].append(run(options, words, pathlib.Path(folder)))
    width = max(map(len, variants))
    print(f"{'':{width}}  {'tokens/s':>11}  {'apart':>6}  {'host ms':>8}  {'waits ms':>9}  {'last loss':>10}")
    for name, rounds in found.items():
        rounds = [steps for steps in rounds if steps]
        if not rounds:
            continue
        means = [statistics.fmean(step["tokens_per_s"] for step in steps) for steps in rounds]
        every = [step for steps in rounds for step in steps]
        host, waits = (statistics.median(step[key] for step in every) for key in ("host_ms", "host_wait_ms"))
        mean = statistics.fmean(means)
        apart = 100 * (max(means) - min(means)) / mean
        print(f"{name:{width}}  {mean:11.1f}  {apart:5.2f}%  {host:8.3f}  {waits:9.3f}  {every[-1]['loss']:10.6f}", flush=True)
    if not all(steps for rounds in found.values() for steps in rounds):
        sys.exit(1)


if __name__ == "__main__":
    main()
