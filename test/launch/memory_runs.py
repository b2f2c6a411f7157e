#!/usr/bin/env python3
"""Tests restarts from state in memory (`checkpoint.in_memory_interval`). After kills between two saves, a run must
continue from the newest step in memory, and reach parameters and losses bitwise equal to those of a run without a
fault. Needs only Python.

    memory_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. Each check runs some layouts; all with SHARDC_LONG=1.
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
FAULT = 55
KEPT = 52  # newest step in memory before the fault; with /kept, steps wait until their state is complete there
LAYOUTS = {name: restarts.LAYOUTS[name] for name in ("FSDP 4", "tp 2 x pp 2", "HSDP 2x2")}
LAYOUTS["DDP 4"] = ["dist.use_megatron_fsdp=false", "ddp.use_megatron_fsdp=false"]  # ranks read each other's state
LAYOUTS["fp8"] = ["mixed_precision=bf16_with_fp8_delayed_scaling_mixed"]  # steps wait for its amax history
KEEPS = [f"checkpoint.in_memory_interval={INTERVAL}"]
STAGED = {"FSDP 4": "1GiB", "tp 2 x pp 2": "64KiB", "fp8": "64KiB"}  # of these layouts the state, or some of it, on the device first
LINE = re.compile(r"resuming after step (\d+) from memory, (.*); [\d.]+ s are lost, reading took [\d.]+ s")
DAMAGED = re.compile(r"rank 1 has a damaged copy of the state of rank 1 after step (\d+) in memory")
OWN = "each rank from its own"

restarts.STEPS = STEPS
restarts.SAVES = [f"checkpoint.save_interval={SAVED}", "validation.eval_interval=8", "validation.eval_iters=1"]


class Job(restarts.Job):
    def memory(self):
        """The steps from which the run has continued, according to its metrics."""
        return [record["step"] for record in self.records() if "from_memory" in record]


def plain_run(place, layout):
    job = Job(place, f"plain-{layout}".replace(" ", "-"), LAYOUTS[layout], "--processes")
    launch.expect_status(0, job.start())
    return job


def expect_from_memory(place, plain, job, *processes, whose, step=KEPT):
    """The restart must continue from this step, according to the line 'restored-from-memory'; `whose` is its
    wording."""
    launch.expect_status(0, *processes)
    said = "".join(process.out + process.err for process in processes)
    lines = LINE.findall(said)
    expect(said.count("[restarted]") == 1, f"{job.name}: not one restart", *processes)
    expect(lines == [(str(step), whose)], f"{job.name}: {lines}, not from step {step} by {whose}", *processes)
    expect(job.memory() == [step], f"{job.name}: metrics have {job.memory()}, not {step}", *processes)
    restarts.expect_equal(place, plain, job, *processes)
    expect_samples(job, *processes)
    print(f"{job.name}: {lines}")


def expect_samples(job, *processes):
    """Each step must be trained once, with the same number of tokens."""
    trained = {record["step"]: record["tokens"] for record in job.records() if "tokens" in record}
    expect(sorted(trained) == list(range(1, STEPS + 1)) and len(set(trained.values())) == 1, f"{job.name}: {trained}", *processes)


def faulted(place, name, settings, fault, *more):
    job = Job(place, name.replace(" ", "-").replace("/", "-"), [*settings, *KEEPS, *more], "--restarts=3",
              environment={"SHARDC_FAULT": f"{fault}/kept"})
    return job, job.start()


def check_killed(place):
    """A rank is killed between two saves, in each layout."""
    for layout in LAYOUTS if restarts.WHOLE else ["FSDP 4", "tp 2 x pp 2", "DDP 4", "fp8"]:
        plain = plain_run(place, layout)
        staged = [f"checkpoint.snapshot_staging={STAGED[layout]}"] if layout in STAGED else []
        job, process = faulted(place, f"killed-{layout}", LAYOUTS[layout], f"kill@2:{FAULT}", *staged)
        expect_from_memory(place, plain, job, process, whose=OWN)
    launch.expect_no_orphans()


def check_background(place):
    """Saves in the background use the same copy on the host, but release it before the disk has finished: a disk that
    never answers does not stop copies to memory."""
    plain = plain_run(place, "FSDP 4")
    job, process = faulted(place, "background", [], f"kill@2:{FAULT}", "checkpoint.async_save=true")
    expect_from_memory(place, plain, job, process, whose=OWN)
    job, process = faulted(place, "stuck-disk", [], f"stuck-disk@0:{SAVED}/save", "checkpoint.async_save=true")
    process.await_text("[save-waits]") # about the save before, at the end
    os.kill(process.children()[2], signal.SIGKILL)
    expect_from_memory(place, plain, job, process, whose=OWN)
    expect("[memory-save-skipped]" not in process.err, "steps were passed over", process)
    check_next_steps(place, plain)


def check_next_steps(place, plain):
    """Copies of the state in consecutive steps must not wait for a step that has not ended."""
    job = restarts.Job(place, "next-steps", ["checkpoint.async_save=true", "checkpoint.save_interval=5", "checkpoint.in_memory_interval=1"],
                       "--restarts=1")
    process = job.start()
    launch.expect_status(0, process)
    restarts.expect_equal(place, plain, job, process)


def check_two(place):
    """Two ranks are killed at once, and again after the restart."""
    plain = plain_run(place, "FSDP 4")
    job, process = faulted(place, "two", [], f"hang@3:{FAULT}")
    process.await_text(f"step {FAULT - 1}/")
    os.kill(process.popen.pid, signal.SIGSTOP) # stopped, it does not end a rank because of the other one
    for pid in process.children()[1:3]:
        os.kill(pid, signal.SIGKILL)
    os.kill(process.popen.pid, signal.SIGCONT)
    expect_from_memory(place, plain, job, process, whose=OWN)


def check_corrupted(place):
    """A corrupted copy must be noticed: the run uses the older copy, the neighbour's copy, or none."""
    plain = plain_run(place, "FSDP 4")
    older, newer = KEPT - 2 * INTERVAL, KEPT - INTERVAL

    def expect_noticed(job, step, *processes):
        launch.expect_status(0, *processes)
        expect(DAMAGED.findall(processes[0].err) == [str(step)], f"{job.name}: not step {step} is damaged", *processes)

    job, process = faulted(place, "corrupted", [], f"corrupt-memory@1:{newer}")
    expect_noticed(job, newer, process)
    expect_from_memory(place, plain, job, process, whose=OWN, step=older)
    job = Job(place, "spoiled-launched", KEEPS, "--restarts=3")
    everyone = {rank: {"SHARDC_FAULT": f"corrupt-memory@1:{newer}/kept"} for rank in range(launch.RANKS)}
    processes = place.torchrun(job.command, changes=everyone, name=job.name)
    expect_noticed(job, newer, *processes)
    expect_from_memory(place, plain, job, *processes, whose="rank 1 from the copy of rank 3, the others from their own", step=newer)
    job, process = faulted(place, "corrupted-first", [], f"corrupt-memory@1:{INTERVAL}")
    expect_noticed(job, INTERVAL, process)
    restarts.expect_restarted(place, plain, job, process)
    expect(job.memory() == [], f"spoiled-first: from a damaged copy, {job.memory()}", process)


def check_machine(place):
    """If a supervisor is killed with its rank, their memory is lost. A supervisor that is started in its place gets the
    neighbour's copy."""
    for layout in LAYOUTS if restarts.WHOLE else ["tp 2 x pp 2", "HSDP 2x2"]:
        plain = plain_run(place, layout)
        job = Job(place, f"machine-{layout}".replace(" ", "-"), [*LAYOUTS[layout], *KEEPS], "--restarts=3")
        # The run waits before this step, so that it is known what is lost.
        everyone = {rank: {"SHARDC_FAULT": f"hang@2:{FAULT}/kept"} for rank in range(launch.RANKS)}
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
    """What cannot be stored in memory is refused or reported."""
    saves = f'checkpoint.save="{place.folder}/refused"'
    process = place.start("run", ["shardc-run", place.plan(saves, *KEEPS, steps=2)])
    launch.expect_status(0, process)
    expect("[memory-saves-unused]" in process.out, "it does not say that nothing is kept", process)
    large = ["model.vocab_size=400000000", "checkpoint.snapshot_limit=1TiB"]
    process = place.start("run", ["shardc-run", place.plan(saves, *KEEPS, *large, steps=2), "--restarts=1"])
    launch.expect_status(1, process)
    expect("for 4 ranks, and " in process.err and "[memory-saves-too-large]" in process.err, "no refusal of its size", process)


CHECKS = {"killed": check_killed, "background": check_background, "two": check_two, "corrupted": check_corrupted, "machine": check_machine,
          "refused": check_refused}


if __name__ == "__main__":
    launch.run_check(CHECKS)
