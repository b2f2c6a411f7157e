#!/usr/bin/env python3
"""Injects faults into runs of each layout at several times. Each run must either end like a run without faults, or end
with an error that names the cause. Needs only Python and the two programs.

    fault_matrix.py SHARDC_FOLDER [--rounds N] [--together N] [--seconds S] [--only TEXT] [--seed N]

A job has two machines with two places each, which are groups of processes with torchrun's variables, and a spare. Most
faults are injected into a rank (SHARDC_FAULT). The others come from outside: two ranks at once, a machine (two
supervisors with their ranks) that stays lost or comes back, and rank 0's supervisor. Prints a line for each run, and a
table of the outcomes. A run is equal if the last loss of each step and all parameters are bitwise those of a run
without faults, and near if they are within 1e-5. Any other end is an error, with exit status 1. No run starts after S
seconds.
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
import restart_runs

OUTSIDE = ("two", "machine", "machine-back", "first")
WAIT = 10  # seconds of a collective, and for places that are lost
NO_REASON = "no reason"


def cells():
    planted = [(layout, kind, moment) for layout, kind, moment in restart_runs.CELLS]
    return planted + [(layout, kind, "step") for layout in restart_runs.LAYOUTS for kind in OUTSIDE]


def sizes_of(layout, kind):
    """Machines that are lost need another size; the layout of two stages has none below four ranks."""
    return "4,2" if kind.startswith("machine") and layout != "tp 2 x pp 2" else None


class Struck:
    """A run of a cell, from its start to its end."""

    def __init__(self, place, cell, number, plain):
        self.layout, self.kind, self.moment = cell
        self.name = f"{number}-{'-'.join(cell)}".replace(" ", "-")
        self.plain, self.began, self.stage = plain, time.monotonic(), 0
        settings = [*restart_runs.LAYOUTS[self.layout], *restart_runs.SAVES[1:]]
        if self.kind == "disk-full":
            settings.append("checkpoint.stop_on_save_error=true")
        elastic = sizes_of(self.layout, self.kind)
        self.run = elastic_runs.Run(place, self.name, "--restarts=4", spares=1, elastic=elastic, settings=settings, wait=WAIT)
        self.run.start_all(SHARDC_FAULT=self.fault())

    def fault(self):
        if self.kind in OUTSIDE:
            return "hang@1:6"  # so that the run does not end before
        rank = {"start": 1, "forward": 2, "collective": 3, "save": 0, "evaluation": 1}[self.moment]
        return f"{self.kind}@{rank}:{restart_runs.MOMENTS[self.moment]}"

    def strike(self):
        """What is done from outside, once it is time for it."""
        said = self.run.first.err + self.run.first.out
        if self.stage == 0 and self.kind in OUTSIDE and "saved step 4 to" in said:
            self.stage = 1
            if self.kind == "two":
                for number in (2, 3):
                    for child in self.run.processes[number].children():
                        os.kill(child, signal.SIGKILL)
            elif self.kind == "first":
                self.run.first.popen.kill()
            else:
                self.run.lose(2, 3)
        if self.stage == 1 and self.kind == "machine-back" and "[restarted]" in said:
            self.stage = 2
            for number in (2, 3):
                self.run.start(number)

    def is_over(self):
        self.strike()
        away = {2, 3} if self.stage == 1 and self.kind.startswith("machine") else set()
        return all(process.popen.poll() is not None for number, process in self.run.processes.items() if number not in away)

    def outcome(self, place):
        first = self.run.first
        if first.popen.poll() != 0:
            said = "".join(process.err for process in self.run.processes.values())
            ids = [name for name in re.findall(r"error: .*\[([a-z0-9-]+)\]$", said, re.MULTILINE)]
            return f"ends: {ids[-1] if ids else NO_REASON}"
        losses, wanted = self.run.losses(), self.plain.losses()
        apart = max((abs(losses[step] - wanted[step]) for step in wanted), default=1) if losses.keys() == wanted.keys() else 1
        most = elastic_runs.most_apart(place, self.plain, self.run)
        apart = max(apart, most)
        return "equal" if apart == 0 else "near" if apart <= elastic_runs.TOLERANCE else f"WRONG: differs by {apart}"


def plain_runs(place):
    found = {}
    for layout, settings in restart_runs.LAYOUTS.items():
        name = f"plain-{layout}".replace(" ", "-")
        run = elastic_runs.Run(place, name, "--processes", elastic=None, settings=[*settings, *restart_runs.SAVES[1:]])
        run.start_here()
        launch.expect_status(0, run.first)
        found[layout] = run
    return found


def table(counts):
    """A row for each fault, a column for each layout: how many runs came to which end."""
    layouts = list(restart_runs.LAYOUTS)
    lines = [f"| fault | {' | '.join(layouts)} |", "|---|" + "---|" * len(layouts)]
    for kind in sorted({kind for kind, _ in counts}):
        parts = []
        for layout in layouts:
            ends = counts.get((kind, layout), {})
            parts.append(", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
        lines.append(f"| {kind} | {' | '.join(parts)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--together", type=int, default=3, help="runs at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="", help="cells whose name has this text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["PATH"] = os.path.abspath(options.folder) + os.pathsep + os.environ["PATH"]
    place, end = launch.Place(), time.monotonic() + options.seconds
    counts, bad, number, under_way = collections.defaultdict(collections.Counter), 0, 0, []
    try:
        plain = plain_runs(place)
        left = [cell for cell in cells() if options.only in "-".join(cell)] * options.rounds
        random.Random(options.seed).shuffle(left)
        while left or under_way:
            while left and len(under_way) < options.together and time.monotonic() < end:
                number += 1
                cell = left.pop()
                under_way.append(Struck(place, cell, number, plain[cell[0]]))
            if time.monotonic() >= end:
                left = []
            for struck in [struck for struck in under_way if struck.is_over()]:
                under_way.remove(struck)
                outcome = struck.outcome(place)
                counts[struck.kind, struck.layout][outcome] += 1
                bad += "WRONG" in outcome or NO_REASON in outcome
                print(f"{struck.name}: {outcome}, {time.monotonic() - struck.began:.1f} s", flush=True)
                if "WRONG" in outcome or NO_REASON in outcome:
                    print("\n".join(launch.shown(process) for process in struck.run.processes.values()), flush=True)
            time.sleep(0.1)
        launch.expect_no_orphans()
    finally:
        launch.kill_marked(place)
    print(f"{number} runs, {bad} of them wrong\n{table(counts)}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
