#!/usr/bin/env python3
"""Tests runs that end because of their numbers or on request: a NaN in a weight, and two requests to end. Needs only
Python.

    fault_runs_of_hosts.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. test/gpu runs the same checks on GPUs.
"""

import json
import os
import pathlib
import signal
import struct
import sys
import time
import zlib

import launch_runs as launch
from launch_runs import expect

STEPS = 3
NAN = struct.pack("<f", float("nan"))
DAMAGED = "decoder.layers."


def run(place, name, plan, *options):
    """A run that must succeed."""
    process = place.start(name, ["shardc-run", plan, *options])
    launch.expect_status(0, process)
    return process


def held_weights(folder, name):
    """The bytes of a rank's part of the last matrix with that name, from a dump of its memory."""
    found = None
    tensors = [tensor for index in folder.glob("index*.json") for tensor in json.loads(index.read_text())["tensors"]]
    for tensor in tensors:
        for part in tensor["parts"]:
            if part["param"].startswith(name) and part["param"].endswith("fc2.weight") and part["end"] - part["begin"] >= 16:
                data = (folder / tensor["file"]).read_bytes()
                found = data[4 * part["begin"]:4 * part["end"]]
    expect(found, f"no dump has a matrix of {name}")
    return found


def plant_nan(saved, weights):
    """Overwrites one of these weights in a saved checkpoint with a NaN, and removes the checksums."""
    middle = len(weights) // 8 * 4
    damaged = weights[:middle] + NAN + weights[middle + 4:]
    before, after = (struct.pack("<I", zlib.crc32(data)) for data in (weights, damaged))
    for path in saved.glob("*.distcp"):
        data = path.read_bytes()
        if weights not in data:
            continue
        expect(data.count(weights) == 1 and before in data, f"{path} has the weights in another form")
        path.write_bytes(data.replace(weights, damaged).replace(before, after))
        (saved / ".shardc_integrity").unlink(missing_ok=True)
        return
    sys.exit(f"no file of {saved} has the weights")


def damaged_run(place, *settings, cell="w", steps=launch.LONG, options=()):
    """The plan of a run that continues from a checkpoint with a NaN in a weight."""
    saves = place.folder / f"saves{place.count}"
    first = place.plan(*settings, f'checkpoint.save="{saves}"', steps=STEPS)
    dump = place.folder / f"dump{place.count}"
    run(place, "first", first, *options, "--dump-dir", dump, "--dump-step", STEPS, f"--dump=update:@{cell}.*")
    plant_nan(saves / f"iter_{STEPS:07}", held_weights(dump, DAMAGED))
    return place.plan(*settings, f'checkpoint.load="{saves}"', steps=steps)


def expect_nan_told(place, plan, options):
    process = place.start("run", ["shardc-run", plan, *options])
    words = [f"step {STEPS + 1}, rank ", "segment micro, microbatch 0", "made by '", ".recipe:", "is nan"]
    launch.expect_end(process, 3, words)
    expect("step 10/" not in process.out, "it went on", process)


def check_nan(place):
    """A NaN in a weight: the step must end the run, and the message must name the first op that read it and its recipe
    line."""
    launch.BESIDE = ("[checksums-lost]",)  # the damaged checkpoint lacks checksums
    for name, options in launch.FORMS:
        expect_nan_told(place, damaged_run(place, options=options), options)
        print(name)


def await_handler(process, count):
    """Waits until all `count` processes of the run, or the single process, handle SIGINT."""
    bit = 1 << (signal.SIGINT - 1)
    end = time.monotonic() + launch.WATCHDOG
    while time.monotonic() < end:
        pids = process.children() if count else [process.popen.pid]
        try:
            status = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in pids]
        except FileNotFoundError:
            status = []
        caught = [int(text.split("SigCgt:")[1].split()[0], 16) for text in status]
        if len(caught) == max(count, 1) and all(mask & bit for mask in caught):
            return
        time.sleep(0.02)
    launch.fail("nobody waits for signals", process)


def end_at_once(process, kill=os.kill):
    """Requests a run's end for the second time; the run must end without further requests. Returns the seconds that
    this took."""
    begin = time.monotonic()
    kill(process.popen.pid, signal.SIGINT)
    launch.expect_status(3, process)
    return time.monotonic() - begin


def expect_forced(place, options, *settings, count, kill=os.kill):
    """Requests the end of a run of `count` processes, or of one, twice. At the first request, a step is running that
    would take hours."""
    plan = place.plan(*settings, "train.global_batch_size=4000000", steps=2)
    process = place.start("run", ["shardc-run", plan, *options])
    process.await_text("memory per rank")
    await_handler(process, count)
    kill(process.popen.pid, signal.SIGINT)
    process.await_text("a second signal stops at once")
    time.sleep(1)
    expect(process.popen.poll() is None, "one request ended it", process)
    seconds = end_at_once(process, kill)
    expect(process.err.count("stopped at once; nothing was saved") == 1, "it does not say once that it stopped", process)
    expect("done after" not in process.out, "it went on", process)
    launch.expect_no_orphans()
    print(f"{options or 'no options'}: ended {seconds:.2f} s after the second")


def check_forced(place):
    """SIGINT twice within a step that would take hours: the first cannot end the run, the second must."""
    for _, options in launch.FORMS:
        for kill in (os.kill, os.killpg):
            expect_forced(place, options, count=launch.RANKS if options else 0, kill=kill)


def check_forced_stuck(place):
    """The same while a rank is stopped, so that the others wait in a collective."""
    process = launch.start_long(place, ["--processes"])
    os.kill(process.children()[2], signal.SIGSTOP)
    os.kill(process.popen.pid, signal.SIGINT)
    process.await_text("a second signal stops at once")
    time.sleep(1)
    expect(process.popen.poll() is None, "one request ended it", process)
    seconds = end_at_once(process)
    launch.expect_no_orphans()
    print(f"ended {seconds:.2f} s after the second")


def check_set_up(place):
    """A rank stops or hangs before it creates its first channel: the time limit of collectives must end all ranks."""
    plan = place.plan(steps=launch.LONG, timeout=launch.LIMIT)
    runs = {}
    for fault in ("stop-in-set-up", "hang-in-set-up"):
        runs[fault] = place.start(fault, ["shardc-run", plan, "--processes"], {"SHARDC_FAULT": f"{fault}@2"})
    for fault, process in runs.items():
        status = process.wait()
        expect(status == 3, f"{fault}: status {status}", process)
        words = ["rank 2 fell behind: rank", " for it creating the channel of '", "recipe:", "has expired"]
        launch.expect_one_message([process], words, [status])
    launch.expect_no_orphans()


def check_planted(place, options=("--processes",), kinds=("channel-error",), step=3):
    """A rank's channel fails in a step: all ranks must end, and the message must name the op. Returns the seconds that
    this took."""
    took = []
    for kind in kinds:
        plan = place.plan(steps=launch.LONG)
        rank = launch.RANKS - 1
        process = place.start(kind, ["shardc-run", plan, *options], {"SHARDC_FAULT": f"{kind}@{rank}:{step}"})
        process.await_text(f"step {step - 1}/")
        begin = time.monotonic()
        launch.expect_end(process, 3, [f"rank {rank}: ", "; it was in '", "recipe:"])
        took.append(time.monotonic() - begin)
        expect(f"step {step}/" not in process.out, "it went on", process)
    return took


def check_throws(place):
    """A rank's thread throws in a kernel: all ranks must end, with one message that names the op and its recipe
    line."""
    rank, step = launch.RANKS - 1, 3
    for name, options in launch.FORMS:
        process = place.start(name, ["shardc-run", place.plan(steps=launch.LONG), *options], {"SHARDC_FAULT": f"throw@{rank}:{step}"})
        words = [f"rank {rank}: 'micro: ", ".recipe:", "' failed: an exception was injected"]
        launch.expect_end(process, 3, words)
        expect(f"step {step}/" not in process.out, "it went on", process)
        print(name)


CHECKS = {"set-up": check_set_up, "planted": check_planted, "throws": check_throws, "nan": check_nan, "forced": check_forced, "forced-stuck": check_forced_stuck}


if __name__ == "__main__":
    launch.run_check(CHECKS)
