#!/usr/bin/env python3
"""Measures the time of `ckpt reshard` by one or several builds, alternately. Needs only Python, and twice the size in
FOLDER.

    reshard_speed.py FOLDER SHARDC... [--gigabytes N] [--ranks R,...] [--threads T] [--rounds K]
                     [--record FILE HARDWARE]

Imports a Llama of N GB in bf16 (3.6 by default) into FOLDER, and writes it for R ranks by each program in turn. The
results of all programs must be the same bytes. Prints for each program the median and the best time, the processor time
of the median run, and the largest peak of resident memory. --record writes those of the last program.
"""

import argparse
import filecmp
import os
import pathlib
import shutil
import sys
import tempfile
import time

import convert_memory
import record_figure


def run(*command):
    """Seconds, processor seconds and the peak in MiB of a command."""
    start = time.monotonic()
    silent = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    process = os.posix_spawn(command[0], [str(word) for word in command], os.environ, file_actions=silent)
    _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command[0]} failed")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def check_equal(a, b):
    names = files_of(a)
    if names != files_of(b) or filecmp.cmpfiles(a, b, names, shallow=False)[0] != names:
        sys.exit(f"{a} and {b} differ")


def compare(options, work, ranks):
    size = sum((work / "in" / name).stat().st_size for name in files_of(work / "in"))
    runs = {program: [] for program in options.shardc}
    for turn in range(options.rounds):
        for program in options.shardc:
            out = work / f"out{options.shardc.index(program)}"
            runs[program].append(run(program, "ckpt", "reshard", work / "in", out, f"--ranks={ranks}",
                                     f"--threads={options.threads}"))
            if turn == 0 and program != options.shardc[0]:
                check_equal(work / "out0", out)
            if turn != 0 or program != options.shardc[0] or len(options.shardc) == 1:
                shutil.rmtree(out)
        shutil.rmtree(work / "out0", ignore_errors=True)
    for program, results in runs.items():
        results.sort()
        seconds, processor, _ = results[len(results) // 2]
        print(f"{program}, {ranks} ranks: {seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s; best {results[0][0]:.2f} s, "
              f"{size / results[0][0] / 1e9:.2f} GB/s; processor {processor:.2f} s; "
              f"peak {max(peak for _, _, peak in results):.0f} MiB", flush=True)
    if options.record:
        file, hardware = options.record
        more = {"best": f"{size / results[0][0] / 1e9:.2f}", "processor time, s": f"{processor:.1f}",
                "peak memory, MiB": f"{max(peak for _, _, peak in results):.0f}"}
        record_figure.record(file, case=f"`reshard` of {size / 1e9:.2f} GB, {ranks} rank{'s' if ranks > 1 else ''}", measure="GB/s", ours=round(size / seconds / 1e9, 2),
                             more=more, hardware=hardware)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("shardc", nargs="+")
    parser.add_argument("--gigabytes", type=float, default=3.6)
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    record_figure.add_argument(parser)
    options = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="reshard-", dir=options.folder))
    try:
        convert_memory.write_model(work / "hub", options.gigabytes * 1e9)
        run(options.shardc[0], "ckpt", "import", "hf", work / "hub", work / "in", "--weight-dtype=bfloat16")
        shutil.rmtree(work / "hub")
        for ranks in options.ranks.split(","):
            compare(options, work, int(ranks))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
