#!/usr/bin/env python3
"""Tests strangers at the rendezvous port, second launches, differing secrets, frozen machines, missing file descriptors, and
runs that do not end on request. Needs only Python.

    stranger_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS.
"""

import concurrent.futures
import contextlib
import os
import random
import re
import select
import signal
import socket
import struct
import sys
import threading
import time

import launch_runs as launch
from launch_runs import LIMIT, LONG, RANKS, expect

WHOLE = os.environ.get("SHARDC_LONG") == "1"

MAGIC = 0x43445253
KINDS = 13  # of messages
REFUSED = "was refused: "


class Proxy:
    """A proxy between a rank and rank 0, which records what the rank sends. Listens at another address, with rank 0's
    port."""

    def __init__(self, address, port):
        self.target, self.said, self.wires = ("127.0.0.1", port), [], []
        self.listener = socket.create_server((address, port))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self.said.append(bytearray())
            threading.Thread(target=self.carry, args=(near, far, self.said[-1]), daemon=True).start()

    def carry(self, near, far, said):
        while True:
            for end in select.select([near, far], [], [])[0]:
                data = end.recv(1 << 16)
                if not data:
                    near.close()
                    far.close()
                    return
                if end is near:
                    said += data
                (far if end is near else near).sendall(data)


def steps_of(process):
    found = re.findall(r"step (\d+)/", process.out)
    return int(found[-1]) if found else 0


def expect_goes_on(process):
    process.await_text(f"step {steps_of(process) + 2}/")


def expect_ends_well(processes, refused):
    """One request must end all of a launched job, which has reported strangers `refused` times."""
    processes[0].popen.send_signal(signal.SIGTERM)
    launch.expect_status(0, *processes)
    lines = [line for process in processes for line in process.err.splitlines() if line.strip()]
    told = "".join(f"\n{line}" for line in lines)
    expect(sum(REFUSED in line for line in lines) == refused, f"not {refused} warnings:{told}", *processes)
    expect(len(lines) == refused + 1, f"not {refused + 1} lines but {len(lines)}:{told}", *processes)
    print(*lines, sep="\n")


def number(value):
    return struct.pack("<Q", value)


def text(value):
    return number(len(value)) + value


def hello(version=3, job=b"torchrun", rank=1, world=RANKS):
    """A hello message from somebody who does not know the secret."""
    body = number(version) + text(job) + text(os.urandom(32)) + number(rank) + number(world) + number(7) + number(1)
    body += text(b"machine") + text(b"host") + text(b"") + os.urandom(32)
    return struct.pack("<IIII", MAGIC, 2, len(body), 0) + body


def send(port, *parts):
    """Sends something on a new connection. Returns whether the other end has closed it."""
    with socket.create_connection(("127.0.0.1", port), timeout=launch.WATCHDOG) as wire:
        try:
            for part in parts:
                wire.sendall(part)
            while wire.recv(1 << 16):
                pass
        except ConnectionError:
            pass


def check_strangers(place):
    """Messages and hellos of strangers, a rank's recorded messages, and a thousand silent connections: the job must
    continue."""
    plan, low = place.plan(steps=LONG), launch.free_port()
    port = low + 1
    proxy = Proxy("127.0.0.2", port)
    processes = place.torchrun(["shardc-run", plan], port=low, changes={RANKS - 1: {"MASTER_ADDR": "127.0.0.2"}})
    processes[0].await_text("step 3/")
    draw = random.Random(1)
    frames = [struct.pack("<IIII", MAGIC, kind, size, 0) for kind in range(KINDS + 2) for size in (0, 1 << 31)]
    with concurrent.futures.ThreadPoolExecutor(len(frames)) as senders:  # side by side: the job waits for what follows some
        list(senders.map(lambda frame: send(port, frame), frames))
    for _ in range(50):
        send(port, draw.randbytes(16))
    send(port, b"GET / HTTP/1.1\r\n\r\n")
    for options in ({}, {"version": 99}, {"rank": 77}, {"world": 9}, {"rank": 0}, {"job": b"another"}):
        send(port, hello(**options))
    expect_goes_on(processes[0])
    said = bytes(max(proxy.said, key=len))
    expect(len(said) > 500, "the proxy has not seen what a rank says")
    for end in (len(said), 300):
        send(port, said[:end])
    send(port, said[-200:])
    expect_goes_on(processes[0])
    silent = []
    for _ in range(1000):
        silent.append(socket.create_connection(("127.0.0.1", port)))
    expect_goes_on(processes[0])
    held = [len(os.listdir(f"/proc/{process.popen.pid}/fd")) for process in processes]
    expect(max(held) < 300, f"descriptors {held}")
    expect_ends_well(processes, refused=1)
    for wire in silent:
        wire.close()


def check_second(place):
    """A second launch with the port of a running job, and a second one that is equal to it: each must be refused with
    the reason, and the first job continues."""
    port, low = launch.free_port(), launch.free_port()
    plan = place.plan(f"dist.rendezvous_port={port}", steps=LONG)
    first = place.torchrun(["shardc-run", plan], port=low)
    first[0].await_text("step 3/")
    for name, its in (("other", launch.free_port()), ("same", low)):
        second = place.torchrun(["shardc-run", plan], port=its, name=name)
        statuses = launch.end_like_torchrun(second)
        expect(any(statuses), f"statuses {statuses}", *second)
        words = [f"127.0.0.1:{port}", "in use", f"held by process {first[0].popen.pid} (shardc-run) of user"]
        launch.expect_one_message(second, words, statuses)
        expect_goes_on(first[0])
    socket.create_connection(("127.0.0.1", port)).close()  # like a rank that ends before it has sent anything
    expect_goes_on(first[0])
    expect_ends_well(first, refused=0)


def check_another_secret(place):
    """Machines with different secrets: one message must say what to do."""
    plan = place.plan(steps=4)
    changes = {rank: {"SHARDC_JOB_SECRET": f"the secret of machine {rank // 2}"} for rank in range(RANKS)}
    processes = place.torchrun(["shardc-run", plan], changes=changes)
    statuses = launch.end_like_torchrun(processes)
    expect(any(statuses), f"statuses {statuses}", *processes)
    launch.BESIDE = (REFUSED,)
    words = ["rank 2: rank 0 at 127.0.0.1:", "another secret", "set SHARDC_JOB_SECRET to the same text for all ranks", "[other-secret]"]
    launch.expect_one_message(processes, words, statuses)
    launch.expect_no_orphans()
    same = {rank: {"SHARDC_JOB_SECRET": "the secret of all machines"} for rank in range(RANKS)}
    processes = place.torchrun(["shardc-run", plan], changes=same)
    launch.expect_status(0, *processes)


def slow_down(rank, processes):
    """Lets a rank work for a small part of the time, until one of the processes ends. The others wait for it in each
    collective; without this, all ranks would train at full speed."""
    with contextlib.suppress(ProcessLookupError):
        while all(process.popen.poll() is None for process in processes):
            os.kill(rank, signal.SIGSTOP)
            time.sleep(2)
            os.kill(rank, signal.SIGCONT)
            time.sleep(0.1)


def check_frozen(place):
    """SIGSTOP of rank 0's supervisor: the other ranks must end with one message, within the time limit of collectives.
    They wait until then, since one of them hangs."""
    plan = place.plan(steps=LONG, timeout=LIMIT)
    last = RANKS - 1
    processes = place.torchrun(["shardc-run", plan], changes={last: {"SHARDC_FAULT": f"hang@{last}:4"}})
    processes[0].await_text("step 3/")
    os.kill(processes[0].popen.pid, signal.SIGSTOP)
    begin = time.monotonic()
    for rank in processes[-1].children():
        slow_down(rank, processes[1:])
    launch.expect_status(3, *processes[1:])
    print(f"ended after {time.monotonic() - begin:.0f} s")
    words = ["rank 0's process at 127.0.0.1:", "does not respond", "dist.distributed_timeout_minutes) has expired [rank-0-gone]"]
    launch.expect_one_message(processes, words)
    os.kill(processes[0].popen.pid, signal.SIGCONT)
    launch.expect_status(3, processes[0])
    launch.expect_one_message(processes, words)


def check_descriptors(place):
    """Few file descriptors for rank 0, or for another rank: the run must end with one message that tells so, without a
    busy loop."""
    plan = place.plan(steps=2)
    cases = [(rank, most) for rank in (0, 2) for most in (5, 7, 9, 11, 13, 16, 20, 26)]
    ended, together = 0, 4  # runs at a time; most wait for ranks to end
    for first in range(0, len(cases), together):
        before = os.times()
        some = []
        for rank, most in cases[first:first + together]:
            limited = ["bash", "-c", f'ulimit -n {most}; exec "$@"', "bash", "shardc-run", plan]
            some.append((rank, most, place.torchrun(["shardc-run", plan], commands={rank: limited}, name=f"of{most}-{rank}-")))
        ends = [launch.end_like_torchrun(processes) for _, _, processes in some]
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        expect(used < 30 * together, f"{cases[first:first + together]}: {used:.0f} s of work")
        launch.expect_no_orphans()
        for (rank, most, processes), statuses in zip(some, ends):
            if statuses == [0] * RANKS:
                continue
            ended += 1
            errors = [line for process in processes for line in process.err.splitlines() if "error" in line]
            told = [line for line in errors if "Too many open files" in line]
            expect(told and any(statuses), f"rank {rank}, {most} descriptors, statuses {statuses}", *processes)
            expect(len(errors) == 1, f"rank {rank}, {most} descriptors, not one message: {errors}", *processes)
            print(f"rank {rank}, {most}: {told[0]}")
    expect(ended > 4, "too few of these were too few")


def check_asked_stuck(place):
    """SIGTERM, once, to a run whose host hangs: it must end with a message."""
    for name, options in launch.FORMS:
        fault = {"SHARDC_FAULT": f"hang@{RANKS - 1}:12"}
        process = launch.start_long(place, options, environment=fault)
        time.sleep(1)  # lets the step before the fault end; an earlier signal would also do
        os.kill(process.popen.pid, signal.SIGTERM)
        launch.expect_status(3, process)
        launch.BESIDE = ()
        errors = [line for line in process.err.splitlines() if "error: " in line]
        expect(len(errors) == 1 and "asked to end, but it has made no progress for 20 s" in errors[0], f"errors {errors}", process)
        launch.expect_no_orphans()
        print(f"{name}: {errors[0]}")


def check_busy(place):
    """Thousands of microbatches per step, with twice as many busy processes as cores: the run must not report a
    deadlock."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # ends with this test, however it ends
    busy = [place.start(f"busy{n}", [sys.executable, "-c", spin]) for n in range(2 * len(os.sched_getaffinity(0)))]
    for microbatches, runs in ((2_000, 200 if WHOLE else 3), (20_000 if WHOLE else 6_000, 200 if WHOLE else 1)):
        plan = place.plan(f"train.global_batch_size={RANKS * microbatches}", "train.micro_batch_size=1", "model.num_layers=1",
                          "model.hidden_size=16", "model.ffn_hidden_size=16", "model.seq_length=4", steps=1)
        for turn in range(runs):
            process = place.start("run", ["shardc-run", plan])
            status = process.wait()
            expect(status == 0, f"{microbatches} microbatches, turn {turn}: status {status}", process)
        print(f"{runs} runs of {microbatches} microbatches ended well", flush=True)
    for process in busy:
        process.popen.kill()
        process.wait()


def check_twice(place):
    """A second run with the same folder of saves: one message, which one rank finds and the others receive."""
    saves = f'checkpoint.save="{place.folder}/twice"'
    first = launch.start_long(place, ["--processes"], [saves])
    second = place.start("second", ["shardc-run", place.plan(saves), "--processes"])
    launch.expect_status(1, second)
    launch.expect_one_message([second], ["checkpoint.save: ", "is in use: process"])
    first.popen.send_signal(signal.SIGTERM)
    launch.expect_status(0, first)
    launch.expect_no_orphans()


CHECKS = {
    "strangers": check_strangers,
    "second": check_second,
    "twice": check_twice,
    "another-secret": check_another_secret,
    "frozen": check_frozen,
    "descriptors": check_descriptors,
    "asked-stuck": check_asked_stuck,
    "busy": check_busy,
}


if __name__ == "__main__":
    launch.run_check(CHECKS)
