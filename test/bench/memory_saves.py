#!/usr/bin/env python3
"""Measures by how much supervisors (--restarts) and saves in memory (checkpoint.in_memory_interval) slow down a step,
and how long a restart takes. Needs only Python and the programs; with plans in a folder, only shardc-run.

    memory_saves.py SHARDC SHARDC_RUN RECIPE FOLDER [--old SHARDC:SHARDC_RUN] [--backend cuda|host] [--steps N] [--interval K]
                    [--rounds R] [--limit PERCENT] [--ways NAME,...] [--plan-folder F [--compile-only]] [--set path=value ...]

Each round runs the recipe in several ways: plainly; with --restarts; with --restarts and a save in memory every K
steps; the same without staging on the device; and with --old, plainly by the programs of another build. Each round
begins with another way. The time of a step is that of all steps after the tenth, by the times at which their lines are
printed; a run ends after step N. The shares are medians over the rounds, of each way relative to the first one. A
second figure compares steps within the runs with saves: the first half of each interval, in which state is copied, with
the second half; the difference is the cost of a save. With --limit, the exit status says whether saves in memory stay
within the limit.

Then rank 0 is killed, once in a run with saves in memory and once in a run that saves to disk. The script prints the
seconds from the last line before the kill to the next step, with the run's messages about it. --ways selects some of
plain, restarts, memory, unstaged, old and kill. Saves go to FOLDER/measured, whose path is part of the plans; it is
removed.
"""

import pathlib
import shutil
import statistics
import sys
import tempfile

import save_runs

FIRST = 10  # steps that are not counted
SAVED, KILLED = 20, 25  # steps of the runs that restart


def plans(options, folder):
    """{way: (program, plan, options)}, and of the runs that restart."""
    saving = [f"train.train_iters={options.steps + 1}", f'checkpoint.save="{options.folder}"']
    disk = [*saving, f"checkpoint.save_interval={SAVED}"]
    plain = save_runs.plan(options, folder, "plain", *saving)
    memory = save_runs.plan(options, folder, "memory", *saving, f"checkpoint.in_memory_interval={options.interval}")
    ways = {"plain": (options.shardc_run, plain), "restarts": (options.shardc_run, plain, "--restarts=1"),
            "memory": (options.shardc_run, memory, "--restarts=1")}
    if "unstaged" in options.ways:
        every = f"checkpoint.in_memory_interval={options.interval}"
        unstaged = save_runs.plan(options, folder, "unstaged", *saving, every, "checkpoint.snapshot_staging=0")
        ways["unstaged"] = (options.shardc_run, unstaged, "--restarts=1")
    if options.old:
        shardc, program = options.old.split(":")
        ways["old"] = (program, save_runs.plan(options, folder, "old", *saving, shardc=shardc))
    kept = save_runs.plan(options, folder, "restart-memory", *saving, f"checkpoint.in_memory_interval={SAVED}")
    return ways, {"memory": kept, "disk": save_runs.plan(options, folder, "restart-disk", *disk)}


def step_times(options, way):
    lines = save_runs.run(options, *way, isOver=lambda line: save_runs.step_of(line) == options.steps)
    for _, line in lines:
        if "[memory-save-skipped]" in line:
            print(line.strip(), "A larger --interval keeps it.", sep="\n")
    return {step: when for when, line in lines if (step := save_runs.step_of(line))}


def mean_step(times, options):
    return (times[options.steps] - times[FIRST]) / (options.steps - FIRST)


def halves(times, options):
    """What the first half of an interval takes beyond the second one, in seconds and in percent of a step of the whole."""
    half = options.interval // 2
    begins = range(options.interval, options.steps - options.interval + 1, options.interval)
    first, second = (sum(times[b + end] - times[b + end - half] for b in begins) for end in (half, 2 * half))
    return (first - second) / len(begins), 100 * (first - second) / (2 * second)


def restart(options, way, plan):
    """The seconds between two steps, and the messages about a restart."""
    begun = []

    def is_over(line):
        if "[restarted]" in line:
            begun.append(line)
        return begun and save_runs.step_of(line)

    # `kept`: the state is complete in memory before the fault, however fast steps are.
    fault = f"kill@0:{KILLED}" + ("/kept" if way == "memory" else "")
    lines = save_runs.run(options, options.shardc_run, plan, "--restarts=1", isOver=is_over, SHARDC_FAULT=fault)
    steps = [when for when, line in lines if save_runs.step_of(line)]
    told = [line.strip() for _, line in lines if "[restarted]" in line or line.startswith(("going on after", "continuing after", "resuming after"))]
    return steps[-1] - steps[-2], told


def main():
    parser = save_runs.parser(__doc__, steps=460, interval=150)
    parser.add_argument("--old")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["plain", "restarts", "memory", "unstaged", "old", "kill"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ways, restarts = plans(options, options.plan_folder or pathlib.Path(name))
        if options.compile_only:
            return
        asked = [way for way in ways if way in options.ways]
        seconds, within = {way: [] for way in asked}, {way: [] for way in asked if way in ("memory", "unstaged")}
        for number in range(options.rounds if asked else 0):
            first = number % len(asked)
            for way in asked[first:] + asked[:first]:
                times = step_times(options, ways[way])
                seconds[way].append(mean_step(times, options))
                if way in within:
                    within[way].append(halves(times, options))
                print(f"round {number + 1}, {way}: {seconds[way][-1] * 1e3:.3f} ms", flush=True)
        ends = {way: restart(options, way, plan) for way, plan in restarts.items()} if "kill" in options.ways else {}
    shutil.rmtree(options.folder, ignore_errors=True)
    shares = {}
    for way, times in seconds.items():
        shares[way] = statistics.median(100 * (own / usual - 1) for own, usual in zip(times, seconds[asked[0]]))
        print(f"{way}: {statistics.median(times) * 1e3:.3f} ms a step, {shares[way]:+.2f} %")
    for way, found in within.items():
        lost, share = (statistics.median(each) for each in zip(*found))
        print(f"{way}: a save costs {lost * 1e3:+.0f} ms by first and second halves of intervals, {share:+.2f} % of a step")
    for way, (lost, told) in ends.items():
        print(f"from {way}: {lost:.1f} s from the last step before a kill to the next one", *told, sep="\n  ")
    sys.exit(options.limit is not None and shares.get("memory", 0) > options.limit)


if __name__ == "__main__":
    main()
