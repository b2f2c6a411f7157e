#!/usr/bin/env python3
"""Restarts from state in memory (`checkpoint.in_memory_interval`): after kills between two saves a run goes on from the newest step
in memory, to the parameters and losses of a run without a fault, to the bit. Needs only Python.

    memory_runs.py CHECK [SHARDC_FOLDER]

CHECK is what has to hold; see CHECKS. Some layouts of each check run; all of them with SHARDC_LONG=1.
"""

import os
import re
import signal
import sys

import launch_runs as launch
import restart_runs as restarts
from launch_runs import expect

STEPS = 56
INTERVAL = 4
SAVED = 28  # the only save before the fault
FAULT = 55  # behind several steps in memory, of which the newest may still be under way
KEPT = range(SAVED + 1, FAULT)
LAYOUTS = {name: restarts.LAYOUTS[name] for name in ("FSDP 4", "tp 2 x pp 2", "HSDP 2x2")}
LAYOUTS["DDP 4"] = ["dist.use_megatron_fsdp=false", "ddp.use_megatron_fsdp=false"]  # ranks read from each other
LAYOUTS["fp8"] = ["mixed_precision=bf16_with_fp8_delayed_scaling_mixed"]  # a history that steps wait for
KEEPS = [f"checkpoint.in_memory_interval={INTERVAL}"]
LINE = re.compile(r"going on after step (\d+) from memory, (.*); [\d.]+ s are lost, reading took [\d.]+ s")
DAMAGED = re.compile(r"rank 1 has a damaged copy of the state of rank 1 after step (\d+) in memory")
OWN = "each rank from its own"

restarts.STEPS = STEPS
restarts.SAVES = [f"checkpoint.save_interval={SAVED}", "validation.eval_interval=8", "validation.eval_iters=1"]


class Job(restarts.Job):
    def memory(self):
        """The steps from which the metrics say that it has gone on."""
        return [record["step"] for record in self.records() if "from_memory" in record]


def plain_run(place, layout):
    job = Job(place, f"plain-{layout}".replace(" ", "-"), LAYOUTS[layout], "--processes")
    launch.expect_status(0, job.start())
    return job


def expect_from_memory(place, plain, job, *processes, whose, steps=KEPT, count=1):
    """Each restart goes on from one of these steps, as the line 'restored-from-memory' says; `whose` has the words of the last one."""
    launch.expect_status(0, *processes)
    said = "".join(process.out + process.err for process in processes)
    lines = LINE.findall(said)
    expect(len(lines) == count and said.count("[restarted]") == count, f"{job.name}: not {count} restarts from memory", *processes)
    expect(all(int(step) in steps for step, _ in lines), f"{job.name}: {lines}, not of {list(steps)}", *processes)
    expect(lines[-1][1] == whose, f"{job.name}: {lines[-1]}, not {whose}", *processes)
    expect(job.memory() == [int(step) for step, _ in lines], f"{job.name}: metrics have {job.memory()}, not {lines}", *processes)
    restarts.expect_equal(place, plain, job, *processes)
    expect_samples(job, *processes)
    print(f"{job.name}: {lines}")


def expect_samples(job, *processes):
    """Each step was trained on, and counts as many tokens as the others."""
    trained = {record["step"]: record["tokens"] for record in job.records() if "tokens" in record}
    expect(sorted(trained) == list(range(1, STEPS + 1)) and len(set(trained.values())) == 1, f"{job.name}: {trained}", *processes)


def faulted(place, name, settings, fault, *more):
    job = Job(place, name.replace(" ", "-").replace("/", "-"), [*settings, *KEEPS, *more], "--restarts=3",
              environment={"SHARDC_FAULT": fault})
    return job, job.start()


def check_killed(place):
    """A rank that is killed between two saves, in each layout."""
    for layout in LAYOUTS if restarts.WHOLE else ["FSDP 4", "tp 2 x pp 2", "DDP 4", "fp8"]:
        plain = plain_run(place, layout)
        job, process = faulted(place, f"killed-{layout}", LAYOUTS[layout], f"kill@2:{FAULT}")
        expect_from_memory(place, plain, job, process, whose=OWN)
    launch.expect_no_orphans()


def check_background(place):
    """The same beside saves in the background, which use the same copy on the host. A slow disk may have it up to the fault."""
    plain = plain_run(place, "FSDP 4")
    for number in range(9):
        job, process = faulted(place, f"background-{number}", [], f"kill@2:{FAULT}", "checkpoint.async_save=true")
        launch.expect_status(0, process)
        if job.memory():
            return expect_from_memory(place, plain, job, process, whose=OWN)
        restarts.expect_restarted(place, plain, job, process)
    sys.exit("no run went on from memory")


def check_two(place):
    """Two ranks that are killed at once, and again after the restart."""
    plain = plain_run(place, "FSDP 4")
    job, process = faulted(place, "two", [], f"hang@3:{FAULT}")
    process.await_text(f"step {FAULT - 1}/")
    os.kill(process.popen.pid, signal.SIGSTOP) # it ends no rank because of the other one in between
    for pid in process.children()[1:3]:
        os.kill(pid, signal.SIGKILL)
    os.kill(process.popen.pid, signal.SIGCONT)
    expect_from_memory(place, plain, job, process, whose=OWN)


def spoiled(place, name, begin):
    """A run whose newest copy of rank 1 was damaged where all ranks had that generation: a slow rank may not have completed it."""
    fault = f"spoil-memory@1:{FAULT - 10}"
    for number in range(9):
        job, processes = begin(f"{name}-{number}", fault)
        launch.expect_status(0, *processes)
        if damaged := DAMAGED.search(processes[0].err):
            expect(int(damaged[1]) >= FAULT - 10, f"{name}: step {damaged[1]} is damaged", *processes)
            return int(damaged[1]), job, processes
    sys.exit(f"{name}: no damage was noticed in any run")


def check_spoiled(place):
    """A copy whose bytes have changed is noticed: the older generation is used, or the neighbour's copy, or none."""
    plain = plain_run(place, "FSDP 4")

    def together(name, fault):
        job, process = faulted(place, name, [], fault)
        return job, [process]

    def launched(name, fault):
        job = Job(place, name, KEEPS, "--restarts=3")
        everyone = {rank: {"SHARDC_FAULT": fault} for rank in range(launch.RANKS)}
        return job, place.torchrun(job.command, changes=everyone, name=job.name)

    step, job, processes = spoiled(place, "spoiled", together)
    expect_from_memory(place, plain, job, *processes, whose=OWN, steps=range(SAVED + 1, step))
    step, job, processes = spoiled(place, "spoiled-launched", launched)
    expect_from_memory(place, plain, job, *processes, whose="rank 1 from the copy of rank 3, the others from their own", steps=[step])
    job, process = faulted(place, "spoiled-first", [], "spoil-memory@1:1")
    restarts.expect_restarted(place, plain, job, process)
    expect(job.memory() == [], f"spoiled-first: from a damaged copy, {job.memory()}", process)


def check_machine(place):
    """A supervisor that is killed with its rank takes their memory along; one that is started in its place gets the neighbour's copy."""
    for layout in LAYOUTS if restarts.WHOLE else ["tp 2 x pp 2", "HSDP 2x2"]:
        plain = plain_run(place, layout)
        job = Job(place, f"machine-{layout}".replace(" ", "-"), [*LAYOUTS[layout], *KEEPS], "--restarts=3")
        # The run stands still before the step, so that it is known what is lost.
        everyone = {rank: {"SHARDC_FAULT": f"hang@2:{FAULT}"} for rank in range(launch.RANKS)}
        port = launch.free_port()
        processes = place.torchrun(job.command, port=port, changes=everyone, name=job.name)
        processes[0].await_text(f"step {FAULT - 1}/")
        processes[2].popen.kill()
        absent = [rank for rank in range(launch.RANKS) if rank != 2]
        later = place.torchrun(job.command, port=port, absent=absent, name=f"{job.name}-later")
        processes[2].wait()
        expect_from_memory(place, plain, job, *(processes[:2] + later + processes[3:]),
                           whose="rank 2 from the copy of rank 0, the others from their own")
    launch.expect_no_orphans()


def check_refused(place):
    """What cannot be kept in memory is refused or said."""
    saves = f'checkpoint.save="{place.folder}/refused"'
    process = place.start("run", ["shardc-run", place.plan(saves, *KEEPS, steps=2)])
    launch.expect_status(0, process)
    expect("[memory-saves-unused]" in process.out, "it does not say that nothing is kept", process)
    process = place.start("run", ["shardc-run", place.plan(saves, *KEEPS, "checkpoint.snapshot_limit=4096", steps=2), "--restarts=1"])
    launch.expect_status(1, process)
    expect("[memory-saves-in-pieces]" in process.err, "no refusal of pieces", process)
    large = ["model.vocab_size=400000000", "checkpoint.snapshot_limit=1TiB"]
    process = place.start("run", ["shardc-run", place.plan(saves, *KEEPS, *large, steps=2), "--restarts=1"])
    launch.expect_status(1, process)
    expect("for 4 ranks, and " in process.err and "[memory-saves-too-large]" in process.err, "no refusal of its size", process)


CHECKS = {"killed": check_killed, "background": check_background, "two": check_two, "spoiled": check_spoiled, "machine": check_machine,
          "refused": check_refused}


if __name__ == "__main__":
    launch.run_check(CHECKS)
