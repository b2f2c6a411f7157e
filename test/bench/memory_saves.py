#!/usr/bin/env python3
"""Measures what saves in memory (checkpoint.in_memory_interval) cost a step, and how long a restart from memory takes. Needs only Python
and the programs.

    memory_saves.py SHARDC SHARDC_RUN RECIPE FOLDER [--old SHARDC:SHARDC_RUN] [--steps N] [--interval K] [--rounds R]
                    [--limit PERCENT] [--set path=value ...]

Each round runs the recipe without saves in memory and with one every K steps, and with --old the programs of another build without
them, in turns that begin with another one each time. FOLDER takes what is saved. The time of a step is that of all steps behind the
tenth, by the times at which their lines come. The shares are medians of the rounds, of each against the first. With --limit the exit
status says whether saves in memory keep it. Then rank 0 is killed in a run with them: the seconds from the last line before to the next
step.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

FIRST = 10  # steps that are not counted


def compile_plan(shardc, options, path, *settings):
    base = [f"train.train_iters={options.steps}", "logger.log_interval=1", f'checkpoint.save="{options.folder.absolute() / "saves"}"']
    sets = [f"--set={text}" for text in [*base, *settings, *options.set]]
    done = subprocess.run([shardc, "dump-plan", options.recipe, "-o", path, *sets], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return path


def run(program, plan, options, **environment):
    """[(time, line)] of what a run says."""
    shutil.rmtree(options.folder / "saves", ignore_errors=True)
    process = subprocess.Popen([program, plan, "--restarts=1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, **environment})
    lines = [(time.monotonic(), line) for line in process.stdout]
    if process.wait() != 0:
        sys.exit(f"status {process.returncode}\n{''.join(line for _, line in lines[-20:])}")
    return lines


def step_seconds(lines, options):
    times = {int(found[1]): at for at, line in lines if (found := re.match(r"step (\d+)/", line))}
    skipped = sum("[memory-save-skipped]" in line for _, line in lines)
    if skipped:
        print(f"{skipped} steps were passed over: a larger --interval keeps them")
    return (times[options.steps] - times[FIRST]) / (options.steps - FIRST)


def restart_seconds(lines):
    """From the last step before the fault to the first one after it, and what the run says of it."""
    at = next(number for number, (_, line) in enumerate(lines) if "[restarted]" in line)
    steps = [(when, number) for number, (when, line) in enumerate(lines) if line.startswith("step ")]
    before, after = max(when for when, n in steps if n < at), min(when for when, n in steps if n > at)
    told = [line.strip() for _, line in lines if line.startswith("going on after step")]
    return after - before, told[0] if told else "not from memory"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("shardc_run")
    parser.add_argument("recipe")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--old")
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--interval", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    keeps = f"checkpoint.in_memory_interval={options.interval}"
    with tempfile.TemporaryDirectory() as name:
        plans = pathlib.Path(name)
        ways = {"without": (options.shardc_run, compile_plan(options.shardc, options, plans / "without.plan")),
                "in memory": (options.shardc_run, compile_plan(options.shardc, options, plans / "memory.plan", keeps))}
        if options.old:
            shardc, program = options.old.split(":")
            ways["old"] = (program, compile_plan(shardc, options, plans / "old.plan"))
        seconds = {way: [] for way in ways}
        for number in range(options.rounds):
            order = list(ways)[number % len(ways):] + list(ways)[:number % len(ways)]
            for way in order:
                seconds[way].append(step_seconds(run(*ways[way], options), options))
        fault = options.steps - options.interval // 2
        lost, told = restart_seconds(run(*ways["in memory"], options, SHARDC_FAULT=f"kill@0:{fault}"))
    shutil.rmtree(options.folder / "saves", ignore_errors=True)
    shares = {}
    for way, times in seconds.items():
        shares[way] = statistics.median(100 * (own / usual - 1) for own, usual in zip(times, seconds["without"]))
        print(f"{way}: {statistics.median(times) * 1e3:.2f} ms a step, {shares[way]:+.2f} %; {', '.join(f'{t * 1e3:.2f}' for t in times)}")
    print(f"{lost:.1f} s from the last step before a kill to the next one; {told}")
    sys.exit(options.limit is not None and shares["in memory"] > options.limit)


if __name__ == "__main__":
    main()
