#!/usr/bin/env python3
"""Kills saving runs and makes their file system calls fail; the last complete checkpoint must survive. Needs a
C compiler.

    crash_runs.py CHECK RECIPE [--count N] [--seed S] [--set path=value ...]

CHECK is the disturbance of a run that saves:
    calls    it is killed at each write, sync, rename and removal, and in the middle of writes
    random   it is killed at random moments, --count times
    errors   each of these calls fails, as on a full disk or without rights: one clear error, training continues

After each, the last complete checkpoint loads and gives the losses of a run that never stopped, nothing
that is not whole is taken for a checkpoint, and the next run that saves leaves nothing behind. With
SHARDC_LONG=1 every call is tried and 500 random moments, otherwise a few.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from compare_runs import LONG, Runner
from resume_runs import TRACKER, expect, loads, newest, saves, under

STEPS = 8
FEW = 4  # of the calls, where not all are tried
ASYNC = "checkpoint.async_save=true"
SHIM = pathlib.Path(__file__).parent / "Faults.c"
SAID = {"ENOSPC": "No space left on device", "EACCES": "Permission denied"}


def preloading(shim):
    """The variables that preload the library, behind the runtime of a sanitizer that the programs are built with, which has to
    come first. A name without its folder: LD_PRELOAD takes blanks in a path for the end of a name."""
    kinds = os.environ.get("SHARDC_SANITIZE", "")
    name = "libtsan.so" if "thread" in kinds else "libasan.so" if "address" in kinds else ""
    names = [subprocess.check_output(["cc", "-print-file-name=" + name], text=True).strip()] if name else []
    folders = [str(shim.parent)] + [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {"LD_PRELOAD": ":".join(names + [shim.name]), "LD_LIBRARY_PATH": ":".join(folders)}


class Job:
    """A compiled run that saves into a folder, one that only loads from it, and the losses to get."""

    def __init__(self, runner, steps, interval, *settings):
        self.runner, self.steps = runner, steps
        self.place = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.place.name)
        self.folder, self.base = root / "saved", root / "base"
        self.shim = root / "faults.so"
        runner.call(["cc", "-shared", "-fPIC", "-O1", "-o", self.shim, SHIM, "-ldl"])
        base = [*under("optim_grads_params"), f"train.train_iters={steps}"]
        both = [*base, *loads(self.folder)]
        self.saving = self.compile(root / "saving.plan", *both, *saves(self.folder, interval), *settings)
        self.loading = self.compile(root / "loading.plan", *both)
        self.whole = runner.run(*base)

    def compile(self, path, *settings):
        self.runner.call(["shardc", "dump-plan", self.runner.recipe, "-o", path, *self.runner.arguments(settings)])
        return path

    def start(self, **faults):
        environment = {**os.environ}
        if faults:
            environment |= {**preloading(self.shim), "FAULT_ROOT": str(self.folder)}
            environment |= {f"FAULT_{name.upper()}": str(value) for name, value in faults.items()}
        return subprocess.Popen(
            ["shardc-run", self.saving], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )

    def run(self, **faults):
        process = self.start(**faults)
        seen = process.communicate()[0]
        return process.returncode, seen

    def keep_base(self):
        shutil.copytree(self.folder, self.base)

    def restore_base(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.base, self.folder)

    def check(self, name):
        """The checkpoint that the tracker file names must load, and the run must continue as without the crash."""
        step = newest(self.folder)
        there = {int(path.name[5:]) for path in self.folder.glob("iter_*")}
        expect(step == 0 or step in there, f"{name}: the tracker says {step}, there are {there}")
        for other in there if LONG else {step} & there:
            records = self.runner.metrics(["shardc-run", self.loading_of(other)])
            rest = [(record["loss"], record["grad_norm"]) for record in records]
            expect(rest == self.whole[other:], f"{name}: other losses after step {other}")
        return step

    def loading_of(self, step):
        """The plan that loads this step; the tracker's is found without its number."""
        if step == newest(self.folder):
            return self.loading
        path = pathlib.Path(self.place.name) / f"loading{step}.plan"
        if not path.exists():
            settings = [*under("optim_grads_params"), f"train.train_iters={self.steps}", *loads(self.folder)]
            self.compile(path, *settings, f"checkpoint.ckpt_step={step}")
        return path

    def finish(self, name):
        """The same command again saves to the end and leaves nothing behind."""
        status, seen = self.run()
        expect(status == 0, f"{name}: the next run ended with {status}\n{seen}")
        left = [entry for entry in os.listdir(self.folder) if entry.startswith(".") or ".tmp" in entry]
        expect(not left, f"{name}: the next run left {left}\n{seen}")
        expect(newest(self.folder) == self.steps, f"{name}: the tracker says {newest(self.folder)}")



def some_of(count):
    """All numbers of calls, or a few with the last ones, which put a checkpoint in place."""
    if LONG:
        return range(1, count + 1)
    return sorted({1 + i * (count - 1) // (FEW - 1) for i in range(FEW)} | {count - 2})


def prepared(runner, *settings):
    """A job that has saved its second step, and the number of calls of the rest of the run."""
    job = Job(runner, STEPS, 2, *settings)
    step = [*under("optim_grads_params"), f"train.train_iters={STEPS}", *saves(job.folder), "train.exit_interval=2"]
    runner.run(*step)
    expect(newest(job.folder) == 2, "the first steps are not saved")
    job.keep_base()
    count = pathlib.Path(job.place.name) / "count"
    status, seen = job.run(count=count)
    expect(status == 0, f"status {status}\n{seen}")
    return job, int(count.read_text())


def check_calls(runner, options):
    for settings in ([], [ASYNC, "checkpoint.most_recent_k=1"]):
        job, count = prepared(runner, *settings)
        expect(count > 40, f"only {count} calls were seen")
        tried = 0
        for kind in ("kill", "half"):
            for at in some_of(count):
                job.restore_base()
                name = f"{kind} at call {at} of {count}"
                status, seen = job.run(at=at, kind=kind)
                # Removals in the background have no fixed place, so the last calls may not come.
                expect(status in (-signal.SIGKILL, 0), f"{name}: status {status}\n{seen}")
                expect(job.check(name) >= 2, f"{name}: the checkpoint of step 2 is lost")
                job.finish(name)
                tried += 1
        print(f"{' '.join(settings) or 'synchronous'}: {tried} deaths at {count} calls, each with a whole checkpoint after")


def check_random(runner, options):
    job = Job(runner, 24, 1, ASYNC, "checkpoint.most_recent_k=2")
    start = time.monotonic()
    expect(job.run()[0] == 0, "a run that nothing stops failed")
    length = time.monotonic() - start
    draw = random.Random(options.seed)
    deaths, steps = 0, set()
    shutil.rmtree(job.folder)
    while deaths < (options.count or (500 if LONG else 4)):
        process = job.start()
        time.sleep(draw.uniform(0, 1.1 * length))
        process.kill()
        process.communicate()
        deaths += 1
        if not (job.folder / TRACKER).exists():
            continue
        steps.add(job.check(f"death {deaths}"))
        if newest(job.folder) == job.steps:
            job.finish(f"death {deaths}")
            shutil.rmtree(job.folder)
    print(f"{deaths} deaths at random moments, checkpoints of {len(steps)} different steps after them")


def check_errors(runner, options):
    for settings in ([], [ASYNC]):
        job, count = prepared(runner, *settings)
        tried = 0
        for kind in SAID:
            for at in some_of(count):
                job.restore_base()
                name = f"{kind} from call {at} of {count}"
                status, seen = job.run(at=at, kind=kind)
                if status == 1:  # the folder cannot be prepared: said before anything runs
                    expect("checkpoint.save" in seen or SAID[kind] in seen, f"{name}\n{seen}")
                else:
                    how = "done" if status == 0 else "ended with errors"
                    last = f"{how} after {STEPS} of {STEPS} steps"
                    expect(last in seen, f"{name}: it does not say '{last}'\n{seen}")
                    expect(status == 3 or at > count - 3, f"{name}: status {status}\n{seen}")
                    expect(status == 0 or SAID[kind] in seen, f"{name}: not said\n{seen}")
                expect(job.check(name) >= 2, f"{name}: the checkpoint of step 2 is lost")
                job.finish(name)
                tried += 1
        print(f"{' '.join(settings) or 'synchronous'}: {tried} failures, each said, none harmful")


CHECKS = {"calls": check_calls, "random": check_random, "errors": check_errors}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("recipe")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    CHECKS[options.check](Runner(options.recipe, options.set), options)


if __name__ == "__main__":
    main()
