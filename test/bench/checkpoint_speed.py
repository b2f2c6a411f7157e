#!/usr/bin/env python3
"""Saving and loading a checkpoint against dd with the same bytes on the same disk. Only Python and dd.

    checkpoint_speed.py BENCH FOLDER [--mebibytes N] [--ranks R] [--rounds K] [--limit X]

BENCH is the program checkpoint-bench. Each round writes with dd (conv=fsync) and saves, then reads with dd
and loads, all with nothing of it in the page cache; which of the two is first changes from round to round,
since a disk may be slower or faster after what was done last. Prints the medians and the ratio of each
round; with --limit the exit status says whether the ratios of the medians keep it.
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


def timed(*command):
    start = time.monotonic()
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return time.monotonic() - start


def forget(paths):
    """Takes files out of the page cache: what was synced needs no right for that."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bench(program, verb, folder, options):
    done = subprocess.run(
        [program, verb, folder, str(options.mebibytes), str(options.ranks)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def measure(options, folder):
    raw, saved = folder / "raw", folder / "saved"
    rounds = []
    size = None
    times = {}

    def save():
        done = bench(options.bench, "save", saved, options)
        times["save"] = done["seconds"]
        return done["bytes"]

    def write():
        times["write"] = timed("dd", "if=/dev/zero", f"of={raw}", "bs=1M", f"count={size >> 20}", "conv=fsync")

    def load():
        times["load"] = bench(options.bench, "load", saved, options)["seconds"]

    def read():
        times["read"] = timed("dd", f"if={raw}", "of=/dev/null", "bs=1M")

    for number in range(options.rounds):
        shutil.rmtree(saved, ignore_errors=True)
        raw.unlink(missing_ok=True)
        os.sync()  # what the removals left to do
        turns = (save, write, load, read) if number % 2 == 0 else (write, save, read, load)
        for turn in turns[:2]:
            size = turn() or size
        forget([raw, *[path for path in saved.rglob("*") if path.is_file()]])
        for turn in turns[2:]:
            turn()
        rounds.append(dict(times))
        print(" ".join(f"{name} {seconds:.3f}" for name, seconds in times.items()), file=sys.stderr, flush=True)
    return size, rounds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("folder")
    parser.add_argument("--mebibytes", type=int, default=1536)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        size, rounds = measure(options, pathlib.Path(name))
    print(f"{size / 2**20:.0f} MiB, {options.ranks} ranks, {options.rounds} rounds, median seconds")
    worst = 0.0
    for ours, theirs in (("save", "write"), ("load", "read")):
        ratios = [r[ours] / r[theirs] for r in rounds]
        a, b = (statistics.median(r[key] for r in rounds) for key in (ours, theirs))
        worst = max(worst, a / b)
        print(
            f"{ours:5} {a:8.3f} s  dd {theirs:5} {b:8.3f} s  ratio {a / b:.3f}"
            f"  (rounds {', '.join(f'{ratio:.3f}' for ratio in ratios)})"
        )
    sys.exit(options.limit is not None and worst > options.limit)


if __name__ == "__main__":
    main()
