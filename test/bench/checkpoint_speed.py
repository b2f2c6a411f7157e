#!/usr/bin/env python3
"""Compares the speed of saves and loads with dd, which writes and reads the same bytes on the same disk. Needs only
Python and dd.

    checkpoint_speed.py BENCH FOLDER [--mebibytes N] [--ranks R] [--rounds K] [--pause S] [--direct] [--limit X]
                        [--record FILE HARDWARE]

BENCH is the program checkpoint-bench. Each round runs in both orders: dd (conv=fsync) writes before and after a save,
and reads before and after a load. The speed of a disk can depend on the preceding work, so the ratio of a round is that
of the sums over both orders, and medians are given by position. Before each measurement, written data are synced, the
page cache does not contain them, and the disk pauses equally long. With --direct, dd bypasses the page cache, as saves
do; loads use a memory map and cannot. With --limit, the exit status says whether the median of the ratios is within the
limit.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import record_figure


def timed(*command):
    start = time.monotonic()
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return time.monotonic() - start


def forget(paths):
    """Removes files from the page cache. For synced files, this needs no privileges."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench(program, verb, folder, options):
    done = subprocess.run(
        [program, verb, folder, str(options.mebibytes), str(options.ranks)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


class Disk:
    """The two files or folders that are written and read in turns."""

    def __init__(self, options, folder):
        self.options = options
        self.raw, self.saved = folder / "raw", folder / "saved"
        self.size = None

    def quiet(self):
        os.sync()
        forget([path for path in [self.raw, *self.saved.rglob("*")] if path.is_file()])
        time.sleep(self.options.pause)

    def save(self):
        done = bench(self.options.bench, "save", self.saved, self.options)
        self.size = done["bytes"]
        return done["seconds"]

    def write(self):
        return self.dd("/dev/zero", self.raw, "conv=fsync", *(["oflag=direct"] if self.options.direct else []))

    def load(self):
        return bench(self.options.bench, "load", self.saved, self.options)["seconds"]

    def read(self):
        return self.dd(self.raw, "/dev/null", *(["iflag=direct"] if self.options.direct else []))

    def dd(self, source, target, *words):
        block = 8 if self.options.direct else 1  # MiB: each direct one is waited for
        return timed("dd", f"if={source}", f"of={target}", f"bs={block}M", f"count={(self.size >> 20) // block}", *words)

    def remove(self):
        shutil.rmtree(self.saved, ignore_errors=True)
        self.raw.unlink(missing_ok=True)

    def turns(self, *turns):
        """Seconds of each, one after the other."""
        times = []
        for turn in turns:
            self.quiet()
            times.append(turn())
        return times


def measure(options, folder):
    """Of each round, seconds of each kind in the first place and in the second."""
    disk = Disk(options, folder)
    disk.save()  # once, to learn the size
    rounds = []
    for _ in range(options.rounds):
        times = {}
        disk.remove()
        times["save", 0], times["write", 1] = disk.turns(disk.save, disk.write)
        times["load", 0], times["read", 1] = disk.turns(disk.load, disk.read)
        disk.remove()
        times["write", 0], times["save", 1] = disk.turns(disk.write, disk.save)
        times["read", 0], times["load", 1] = disk.turns(disk.read, disk.load)
        rounds.append(times)
        text = " ".join(f"{name}{'' if place == 0 else ' after'} {seconds:.3f}" for (name, place), seconds in times.items())
        print(text, file=sys.stderr, flush=True)
    return disk.size, rounds


def medians(rounds, name):
    return [statistics.median(times[name, place] for times in rounds) for place in (0, 1)]


def record(options, what, times, peer, ratios):
    """Writes the row of a save or a load; `times` and `peer` are medians by position."""
    ratio = statistics.median(ratios)
    more = {"second": f"{times[1]:.3f}", "dd second": f"{peer[1]:.3f}", "ratio of each round": ", ".join(f"{each:.3f}" for each in ratios)}
    file, hardware = options.record
    record_figure.record(
        file, case=f"{what} of {options.mebibytes:,} MiB{', `--direct`' if options.direct else ''}", measure="s", ours=round(times[0], 3),
        peer=round(peer[0], 3), peer_is="dd", ratio=f"{ratio:.2f} {'of' if ratio < 1 else 'times'} the time", more=more, hardware=hardware
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("folder")
    parser.add_argument("--mebibytes", type=int, default=1536)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds of rest for the disk")
    parser.add_argument("--direct", action="store_true", help="let dd go past the page cache")
    parser.add_argument("--limit", type=float)
    record_figure.add_argument(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        size, rounds = measure(options, pathlib.Path(name))
    print(f"{size / 2**20:.0f} MiB, {options.ranks} ranks, {options.rounds} rounds in both orders, median seconds")
    worst = 0.0
    for ours, theirs in (("save", "write"), ("load", "read")):
        ratios = [sum(r[ours, place] for place in (0, 1)) / sum(r[theirs, place] for place in (0, 1)) for r in rounds]
        (a, a_after), (b, b_after) = medians(rounds, ours), medians(rounds, theirs)
        worst = max(worst, statistics.median(ratios))
        if options.record:
            record(options, ours, (a, a_after), (b, b_after), ratios)
        print(
            f"{ours:5} first {a:.3f}, after dd {a_after:.3f}  dd {theirs} first {b:.3f}, after it {b_after:.3f}"
            f"  ratio {statistics.median(ratios):.3f}  (rounds {', '.join(f'{ratio:.3f}' for ratio in ratios)})"
        )
    sys.exit(options.limit is not None and worst > options.limit)


if __name__ == "__main__":
    main()
