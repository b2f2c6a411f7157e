#!/usr/bin/env python3
"""Launches and faults of runs on GPUs, one process a GPU: what test/launch shows on the host. Only Python is needed.

    fault_runs.py CHECK [SHARDC_FOLDER]

CHECK is what has to hold; see CHECKS. Takes all visible GPUs, four at most.
"""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import fault_runs_of_hosts as faults
import launch_runs as launch
from gpus import memory_used, need_permission, visible
from launch_runs import expect

SETTINGS = ["cluster.gpu=h200"]
SOON = 10  # seconds from a fault to the end of all


def ranks():
    need_permission()
    count = len(visible())
    return 4 if count >= 4 else 2 if count >= 2 else count


def need_several():
    if launch.RANKS < 2:
        print("one GPU is visible; several are needed")
        sys.exit(launch.SKIPPED)


def expect_free_gpus(before):
    """No GPU keeps memory of ours; the driver takes a moment."""
    end = time.monotonic() + 30
    while any(now > then + 64 for now, then in zip(memory_used(), before)):
        expect(time.monotonic() < end, f"MiB in use {memory_used()}, before {before}")
        time.sleep(0.1)


def halves():
    """The GPUs of two 'nodes' of two, as CUDA_VISIBLE_DEVICES has them."""
    if launch.RANKS != 4:
        print("four GPUs are needed")
        sys.exit(launch.SKIPPED)
    launch.SETTINGS = [*SETTINGS, "model.deterministic_mode=true"]
    names = visible()
    return ",".join(names[:2]), ",".join(names[2:4])


def check_torchrun(place):
    """Four GPUs as two 'nodes' under torchrun's environment: the losses of the plain launch."""
    nodes, before = halves(), memory_used()
    launch.check_torchrun(place, {rank: {"CUDA_VISIBLE_DEVICES": nodes[rank // 2]} for rank in range(4)})
    expect_free_gpus(before)


def check_mpirun(place):
    """The same under mpirun."""
    nodes, before = halves(), memory_used()
    node = f"case $OMPI_COMM_WORLD_RANK in 0|1) d={nodes[0]};; *) d={nodes[1]};; esac"
    local = "export MASTER_ADDR=127.0.0.1 CUDA_VISIBLE_DEVICES=$d OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2))"
    launch.check_mpirun(place, ["sh", "-c", f'{node}; {local} OMPI_COMM_WORLD_LOCAL_SIZE=2; exec "$@"', "sh"])
    expect_free_gpus(before)


def check_nan(place):
    """A NaN in a weight of one rank's shard ends all ranks, with the op that met it first."""
    before = memory_used()
    for settings, cell in ((["mixed_precision=fp32"], "w"), (["mixed_precision=bf16_mixed"], "master")):
        plan = faults.damaged_run(place, *SETTINGS, *settings, cell=cell)
        begin = time.monotonic()
        faults.expect_nan_told(place, plan, [])
        print(f"{settings[0]}: start to end {time.monotonic() - begin:.1f} s")
        expect_free_gpus(before)


def check_forced(place):
    """SIGINT twice within a step that will not end for hours."""
    before = memory_used()
    faults.expect_forced(place, [], *SETTINGS, count=launch.RANKS if launch.RANKS > 1 else 0)
    expect_free_gpus(before)


def expect_soon(process, begin, words):
    launch.expect_end(process, 3, words)
    took = time.monotonic() - begin
    expect(took < SOON, f"it took {took:.1f} s")
    print(f"all ranks ended {took:.1f} s after it")


def check_killed(place):
    """kill -9 of the last rank and of the first."""
    need_several()
    before = memory_used()
    for rank in (launch.RANKS - 1, 0):
        process = launch.start_long(place, settings=SETTINGS)
        time.sleep(1)  # until all have told how far they are
        begin = time.monotonic()
        os.kill(process.children()[rank], signal.SIGKILL)
        expect_soon(process, begin, [f"rank {rank} (process", "recipe:"])
        expect_free_gpus(before)


def check_stopped(place):
    """SIGSTOP of the last rank: the time limit of collectives ends all, and it too."""
    need_several()
    before = memory_used()
    process = launch.start_long(place, settings=SETTINGS, timeout=3)
    time.sleep(1)
    begin = time.monotonic()
    os.kill(process.children()[launch.RANKS - 1], signal.SIGSTOP)
    expect_soon(process, begin, [f"rank {launch.RANKS - 1} fell behind: rank", "recipe:", "are over"])
    expect_free_gpus(before)


CHECKS = {"torchrun": check_torchrun, "mpirun": check_mpirun, "nan": check_nan, "forced": check_forced, "killed": check_killed, "stopped": check_stopped}


if __name__ == "__main__":
    launch.RANKS = ranks()
    launch.run_check(CHECKS)
