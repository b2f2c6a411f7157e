#!/usr/bin/env python3
"""Tests launches and faults of runs on GPUs, with one process per GPU: the counterpart of test/launch. Needs only
Python.

    fault_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. Uses all visible GPUs, at most four.
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
NEAR = 1e-4  # relative
SOON = 10  # seconds from a fault to the end of all ranks


def ranks():
    need_permission()
    count = len(visible())
    return 4 if count >= 4 else 2 if count >= 2 else count


def need_several():
    if launch.RANKS < 2:
        print("one GPU is visible; several are needed")
        sys.exit(launch.SKIPPED)


def expect_free_gpus(before):
    """Waits until no GPU holds memory of our processes: the driver takes a moment to free it."""
    end = time.monotonic() + 30
    while any(now > then + 64 for now, then in zip(memory_used(), before)):
        expect(time.monotonic() < end, f"MiB in use {memory_used()}, before {before}")
        time.sleep(0.1)


def halves():
    """The GPUs of two 'nodes' of two GPUs each, in the form of CUDA_VISIBLE_DEVICES."""
    if launch.RANKS != 4:
        print("four GPUs are needed")
        sys.exit(launch.SKIPPED)
    launch.SETTINGS = [*SETTINGS, "model.deterministic_mode=true"]
    names = visible()
    return ",".join(names[:2]), ",".join(names[2:4])


def by_rank(nodes):
    """The environment of each rank of two 'nodes'."""
    return {rank: {"CUDA_VISIBLE_DEVICES": nodes[rank // 2]} for rank in range(4)}


def check_torchrun(place):
    """Four GPUs as two 'nodes' under torchrun's environment must have the losses of the plain launch."""
    nodes, before = halves(), memory_used()
    launch.check_torchrun(place, by_rank(nodes))
    expect_free_gpus(before)


def check_mpirun(place):
    """The same under mpirun."""
    nodes, before = halves(), memory_used()
    node = f"case $OMPI_COMM_WORLD_RANK in 0|1) d={nodes[0]};; *) d={nodes[1]};; esac"
    local = "export MASTER_ADDR=127.0.0.1 CUDA_VISIBLE_DEVICES=$d OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2))"
    wrapper = ["sh", "-c", f'{node}; {local} OMPI_COMM_WORLD_LOCAL_SIZE=2; exec "$@"', "sh"]
    launch.check_mpirun(place, wrapper)
    expect_free_gpus(before)


def check_wrong(place):
    """A wrong rank, world size or plan on one of four ranks gives one message."""
    nodes, before = halves(), memory_used()
    launch.check_wrong(place, by_rank(nodes))
    expect_free_gpus(before)


def check_wrong_address(place):
    """A wrong master address, or a port in use, gives one message."""
    nodes, before = halves(), memory_used()
    launch.check_wrong_address(place, by_rank(nodes))
    expect_free_gpus(before)


def losses_of_nodes(place, plan, name, changes):
    metrics = place.metrics(name)
    processes = place.torchrun(["shardc-run", plan, f"--metrics={metrics}"], changes=changes, name=f"{name}-")
    launch.expect_status(0, *processes)
    print(processes[0].out)
    return place.losses(name)


def expect_near(name, plain, other):
    worst = max((abs(a - b) / abs(a) for x, y in zip(plain, other) for a, b in zip(x, y)), default=1)
    expect(len(plain) == len(other) and worst <= NEAR, f"{name}: {worst} apart\n{other}\nand plain {plain}")
    print(f"{name}: {len(plain)} steps, within {worst:.1e} of the plain launch")


def check_two_nodes(place, name="two nodes", more=None):
    """A plan of two nodes of two GPUs must have the losses of a plain launch on one node of four GPUs: bitwise equal if
    ranks are summed in order, and nearly equal with sums by NCCL."""
    nodes, before = halves(), memory_used()
    changes = by_rank(nodes)
    for rank in range(4):
        changes[rank] |= {key: text.format(node=rank // 2) for key, text in (more or {}).items()}
    for mode, compare in (("true", launch.expect_same), ("false", expect_near)):
        launch.SETTINGS = [*SETTINGS, f"model.deterministic_mode={mode}", "mixed_precision=fp32"]
        plain = place.plain_losses(place.plan())
        plan = place.plan("cluster.nodes=2", "cluster.gpus_per_node=2")
        expect("nodes = 2" in plan.read_text(), "the plan is not of two nodes")
        compare(f"{name}, deterministic_mode={mode}", plain, losses_of_nodes(place, plan, f"nodes-{mode}", changes))
    expect_free_gpus(before)


def check_network(place):
    """The same if NCCL sees two machines, so that communication between the nodes uses sockets."""
    more = {"NCCL_HOSTID": "machine{node}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    check_two_nodes(place, "two machines", more)


def check_nan(place):
    """A NaN in a weight of one rank's shard ends all ranks. The message names the first op that read it."""
    before = memory_used()
    for settings, cell in ((["mixed_precision=fp32"], "w"), (["mixed_precision=bf16_mixed"], "master")):
        plan = faults.damaged_run(place, *SETTINGS, *settings, cell=cell)
        begin = time.monotonic()
        faults.expect_nan_told(place, plan, [])
        print(f"{settings[0]}: start to end {time.monotonic() - begin:.1f} s")
        expect_free_gpus(before)


def check_forced(place):
    """SIGINT twice within a step that would take hours ends the run."""
    before = memory_used()
    faults.expect_forced(place, [], *SETTINGS, count=launch.RANKS if launch.RANKS > 1 else 0)
    expect_free_gpus(before)


def expect_soon(process, begin, words):
    launch.expect_end(process, 3, words)
    took = time.monotonic() - begin
    expect(took < SOON, f"it took {took:.1f} s")
    print(f"all ranks ended {took:.1f} s after it")


def check_killed(place):
    """kill -9 of the last rank, or of the first, ends all ranks."""
    need_several()
    before = memory_used()
    for rank in (launch.RANKS - 1, 0):
        process = launch.start_long(place, settings=SETTINGS)
        time.sleep(1)  # until all have reported their progress
        begin = time.monotonic()
        os.kill(process.children()[rank], signal.SIGKILL)
        expect_soon(process, begin, [f"rank {rank} (process", "recipe:"])
        expect_free_gpus(before)


def check_stopped(place):
    """SIGSTOP of the last rank: the time limit of collectives ends all ranks, the stopped one included."""
    need_several()
    before = memory_used()
    process = launch.start_long(place, settings=SETTINGS, timeout=3)
    time.sleep(1)
    begin = time.monotonic()
    os.kill(process.children()[launch.RANKS - 1], signal.SIGSTOP)
    expect_soon(process, begin, [f"rank {launch.RANKS - 1} fell behind: rank", "recipe:", "has expired"])
    expect_free_gpus(before)


def stages():
    """A pipeline with one stage on each GPU."""
    return [*SETTINGS, f"cluster.gpus_per_node={launch.RANKS}", f"model.pipeline_model_parallel_size={launch.RANKS}",
            f"model.num_layers={2 * launch.RANKS}", "model.share_embeddings_and_output_weights=false"]


def check_killed_stage(place):
    """kill -9 of the rank of any stage ends all ranks."""
    need_several()
    before = memory_used()
    for rank in range(launch.RANKS):
        process = launch.start_long(place, settings=stages())
        time.sleep(1)
        begin = time.monotonic()
        os.kill(process.children()[rank], signal.SIGKILL)
        expect_soon(process, begin, [f"rank {rank} (process", f"stage {rank + 1} of {launch.RANKS}"])
        expect_free_gpus(before)


def check_stopped_stage(place):
    """SIGSTOP of the rank of any stage: the message names the rank, its stage, and the op in which the others wait for
    it."""
    need_several()
    before = memory_used()
    for rank in range(launch.RANKS):
        process = launch.start_long(place, settings=stages(), timeout=3)
        time.sleep(1)
        begin = time.monotonic()
        os.kill(process.children()[rank], signal.SIGSTOP)
        expect_soon(process, begin, [f"rank {rank}, stage {rank + 1} of {launch.RANKS}, fell behind: rank", "has expired"])
        expect_free_gpus(before)


def check_nccl_error(place):
    """An error of a channel, or of a device, on one rank within a step ends all ranks at once. The message names the
    op."""
    need_several()
    before = memory_used()
    launch.SETTINGS = SETTINGS
    kinds = ("channel-error", "device-error")
    for kind, took in zip(kinds, faults.check_planted(place, [], kinds)):
        expect(took < SOON, f"{kind}: it took {took:.1f} s")
        print(f"{kind}: all ranks ended {took:.1f} s after it")
    expect_free_gpus(before)


CHECKS = {"torchrun": check_torchrun, "mpirun": check_mpirun, "two-nodes": check_two_nodes, "network": check_network,
          "wrong": check_wrong, "wrong-address": check_wrong_address, "nan": check_nan, "forced": check_forced,
          "nccl-error": check_nccl_error, "killed": check_killed, "stopped": check_stopped,
          "killed-stage": check_killed_stage, "stopped-stage": check_stopped_stage}


if __name__ == "__main__":
    launch.BESIDE = ("cuDNN does not support", "all-gathers run at")  # shapes and blocks are too small here
    launch.RANKS = ranks()
    launch.run_check(CHECKS)
