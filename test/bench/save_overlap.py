#!/usr/bin/env python3
"""Measures by how much background saves slow down the steps that they overlap. Needs only Python and the two programs.

    save_overlap.py SHARDC SHARDC_RUN RECIPE FOLDER [--backend cuda|host] [--steps N] [--interval K]
                    [--rounds R] [--limit PERCENT] [--plan-folder F [--compile-only]] [--set path=value ...]

Runs the recipe without saves, and with a background save every K steps into FOLDER/measured, alternately. A save
overlaps the steps from the one after it to the one in which its end is reported. The times of these steps, by the times
at which their lines are printed, are compared with those of the same steps without saves; the reported share is the
median over the rounds. If a step waited for a save, K is too small, which is an error. With --limit, the exit status
says whether the share is within the limit.
"""

import pathlib
import shutil
import statistics
import sys
import tempfile

import save_runs

SAVED = "saved step "
WAITED = "training waits"


def run(options, plan):
    """When each step's line came, and the step before which each save was said to be done."""
    times, ends = {}, {}
    lines = save_runs.run(options, options.shardc_run, plan)
    for when, line in lines:
        if step := save_runs.step_of(line):
            times[step] = when
        elif line.startswith(SAVED):
            ends[int(line.split()[2])] = max(times)
        elif WAITED in line and max(times) < options.steps:
            sys.exit(f"steps waited for a save; --interval {options.interval} is too small\n{''.join(line for _, line in lines)}")
    if len(times) != options.steps:
        sys.exit(f"it ended after {len(times)} steps\n{''.join(line for _, line in lines[-20:])}")
    return times, ends


def windows(ends, options):
    """The first and last step that each save overlapped, without saves for which the run waited at its end."""
    found = []
    for step in range(options.interval, options.steps, options.interval):
        last = ends.get(step, options.steps)
        if last < options.steps:
            found.append((step + 1, max(last, step + 1)))
    return found


def measure(options, plain, saving):
    shares, whole, lengths = [], [], []
    for _ in range(options.rounds):
        without, _ = run(options, plain)
        with_saves, ends = run(options, saving)
        spans = windows(ends, options)
        if not spans:
            sys.exit("no save has ended before the last step: more --steps are needed")
        taken = sum(with_saves[last] - with_saves[first - 1] for first, last in spans)
        usual = sum(without[last] - without[first - 1] for first, last in spans)
        shares.append(100 * (taken / usual - 1))
        lengths.append(sum(last - first + 1 for first, last in spans) / len(spans))
        # From the first step on that has a time, so that neither start nor the last save count.
        whole.append(100 * ((with_saves[options.steps] - with_saves[2]) / (without[options.steps] - without[2]) - 1))
    return shares, whole, lengths


def main():
    options = save_runs.parser(__doc__, steps=100, interval=30).parse_args()
    steps = f"train.train_iters={options.steps}"
    saves = [f'checkpoint.save="{options.folder}"', f"checkpoint.save_interval={options.interval}", "checkpoint.async_save=true",
             "checkpoint.most_recent_k=1"]
    with tempfile.TemporaryDirectory() as name:
        folder = options.plan_folder or pathlib.Path(name)
        plain, saving = save_runs.plan(options, folder, "plain", steps), save_runs.plan(options, folder, "saving", steps, *saves)
        if options.compile_only:
            return
        shares, whole, lengths = measure(options, plain, saving)
    shutil.rmtree(options.folder, ignore_errors=True)
    share = statistics.median(shares)
    print(f"a save overlaps {statistics.median(lengths):.1f} steps and takes {share:.2f} % of them")
    print(f"of the whole run it takes {statistics.median(whole):.2f} %")
    print(f"rounds: {', '.join(f'{value:.2f}' for value in shares)}")
    sys.exit(options.limit is not None and share > options.limit)


if __name__ == "__main__":
    main()
