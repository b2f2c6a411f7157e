#!/usr/bin/env python3
"""Injects random faults into one long run, which must end like a run without faults and without help. Needs only Python
and the two programs.

    random_faults.py SHARDC_FOLDER [--steps N] [--faults N] [--seed N] [--machines] [--staging BYTES]

Four ranks run on one machine. After one to three further steps and a random part of a second, a random rank gets
SIGKILL or SIGSTOP, until all faults have been injected. With --machines, there are two machines with two ranks each,
which are groups of processes with torchrun's variables, and --elastic=4,2: the second machine is lost as a whole, and
started again when the run continues without it. A fault is injected only after a later step than the previous one,
since two faults at the same step end a run. The exit status says whether all losses and parameters are bitwise those of
the run without faults, or within 1e-5 with --machines. With --staging, that many bytes of a rank's state are staged on
its device before they are copied to the host (checkpoint.snapshot_staging).
"""

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import elastic_runs
import launch_runs as launch

STEPS_APART = 3
WAIT = 10  # seconds of a collective, and for places that are lost
BATCH = 96  # so that a step takes long enough to be struck


def last_step(run):
    return max(map(int, re.findall(r"^step (\d+)/", run.first.out, re.MULTILINE)), default=0)


def await_step(run, step):
    """False if the run has ended."""
    while last_step(run) < step:
        if run.first.popen.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def strike_rank(run, draw):
    """Kills or stops a random rank. Returns what was done, or None if the rank was not there."""
    kind = draw.choice([signal.SIGKILL, signal.SIGSTOP])
    ranks = run.first.children()
    if len(ranks) < launch.RANKS:
        return None
    try:
        os.kill(draw.choice(ranks[:launch.RANKS]), kind)
    except ProcessLookupError:
        return None
    return kind.name


def strike_machine(run, draw):
    """The machine is gone until the others go on without it; then the run takes it again at its next save."""
    changes = run.first.err.count("[size-changed]")
    run.lose(2, 3)
    run.first.await_text("[size-changed]", count=changes + 1)
    for number in (2, 3):
        run.start(number)
    run.first.await_text("[size-changed]", count=changes + 2)
    return "machine lost"


def struck(run, options):
    """How often each fault has struck."""
    draw, counts, behind = random.Random(options.seed), collections.Counter(), 0
    while counts.total() < options.faults and await_step(run, behind + draw.randint(1, STEPS_APART)):
        time.sleep(draw.uniform(0, 0.3))
        behind = last_step(run)
        ended = run.first.err.count("[restarted]")
        if kind := (strike_machine if options.machines else strike_rank)(run, draw):
            counts[kind] += 1
            print(f"{counts.total()}: {kind} behind step {behind}", flush=True)
            run.first.await_text("[restarted]", count=ended + 1)
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machines", action="store_true")
    parser.add_argument("--staging", default="0")
    options = parser.parse_args()
    os.environ["PATH"] = os.path.abspath(options.folder) + os.pathsep + os.environ["PATH"]
    elastic_runs.EVERY = 5
    settings = [f"train.global_batch_size={BATCH}"]
    memory = ["checkpoint.in_memory_interval=2", f"checkpoint.snapshot_staging={options.staging}"]
    place, begin = launch.Place(), time.monotonic()
    try:
        plain = elastic_runs.Run(place, "plain", "--processes", elastic=None, steps=options.steps, settings=settings)
        plain.start_here()
        launch.expect_status(0, plain.first)
        run = elastic_runs.Run(place, "struck", f"--restarts={options.faults}", elastic="4,2" if options.machines else None,
                               steps=options.steps, settings=[*settings, *memory], wait=WAIT)
        run.start_all() if options.machines else run.start_here()
        counts = struck(run, options)
        elastic_runs.expect_end(place, plain, run, isEqual=not options.machines)
        launch.expect_no_orphans()
        restarts, kept = run.first.err.count("[restarted]"), run.first.out.count(" from memory, ")
    finally:
        launch.kill_marked(place)
    print(f"{counts.total()} faults ({', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}), {restarts} restarts, "
          f"{kept} of them from memory, {time.monotonic() - begin:.0f} s")
    sys.exit(counts.total() < options.faults)


if __name__ == "__main__":
    main()
