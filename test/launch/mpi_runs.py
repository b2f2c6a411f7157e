#!/usr/bin/env python3
"""Tests that ranks that mpirun has launched exchange messages by MPI, or by TCP if MPI fails. Needs only Python.

    mpi_runs.py CHECK [FOLDER_OF_MPI_RANKS]

CHECK is what has to hold; see CHECKS.
"""

import pathlib
import shutil
import sys

import launch_runs as launch
from launch_runs import RANKS, expect

MODULE = "libshardc_mpi.so"


def programs():
    """Where mpi_ranks and its module are."""
    return pathlib.Path(shutil.which("mpi_ranks")).parent


# MPI's libraries keep memory to the process' end, and take locks in both orders.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "detect_deadlocks=0:ignore_noninstrumented_modules=1"}


def start(place, check, program=None, wrapper=()):
    return launch.mpirun(place, check, [*wrapper, program or "mpi_ranks", check], SANITIZERS)


def run_well(place, check, *arguments):
    process = start(place, check, *arguments)
    launch.expect_status(0, process)
    expect(process.err == "", "it has written errors", process)
    print(process.out, end="")
    return process.out.splitlines()


def check_gather(place):
    """Parts of all lengths, in groups that overlap, ranks at several votes, and what is not a part; programs have no MPI in them."""
    folder = programs()
    lines = run_well(place, "gather")
    expect(lines[0].startswith("by Open MPI") and lines[1:] == ["all parts are right"], lines)
    for check in ("keys", "frames"):
        expect(run_well(place, check)[0].startswith("by Open MPI"), "not by MPI")
    for name in ("shardc-run", "mpi_ranks"):
        expect(b"libmpi.so" not in (folder / name).read_bytes(), f"{name} is linked with MPI")


def expect_told(place, check):
    process = start(place, check)
    launch.expect_status(3, process)
    ours = [line for line in process.err.splitlines() if line.startswith("shardc-run: error: ")]
    expect(len(ours) == 1 and "rank 2 (process" in ours[0], f"messages {ours}", process)
    launch.expect_no_orphans()
    print(ours[0])


def check_killed(place):
    """kill -9 of a rank while others wait for it in MPI's begin, by MPI, and in MPI's end: one message, and all end."""
    for check in ("killed-at-begin", "killed", "killed-at-end"):
        expect_told(place, check)


def check_absent(place):
    """Without the module, on all ranks or on one, and where MPI numbers the ranks otherwise: TCP, and why."""
    folder = programs()
    alone = place.folder / "mpi_ranks"
    shutil.copy(folder / "mpi_ranks", alone)
    [line] = run_well(place, "gather", alone)
    expect(line.startswith("by TCP: ") and MODULE in line and "rank" not in line, line)
    [line] = run_well(place, "one-without")
    expect(line.startswith("by TCP: rank 2: /no/such/module.so"), line)
    reverse = ["sh", "-c", f'export OMPI_COMM_WORLD_RANK=$(({RANKS - 1} - OMPI_COMM_WORLD_RANK)); exec "$@"', "sh"]
    [line] = run_well(place, "gather", None, reverse)
    expect("rank 0: mpirun has it as rank 0 of 4, Open MPI" in line and "as rank 3 of 4" in line, line)


CHECKS = {"gather": check_gather, "killed": check_killed, "absent": check_absent}


if __name__ == "__main__":
    launch.run_check(CHECKS)
