"""Code that save_overlap.py and memory_saves.py share: options, plans, and runs whose lines have times."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time


def parser(doc, **defaults):
    """Options with these defaults of steps and interval. Saves go to the subfolder `measured` of the given folder,
    which is emptied and removed."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("shardc")
    found.add_argument("shardc_run")
    found.add_argument("recipe")
    found.add_argument("folder", type=lambda text: pathlib.Path(text).absolute() / "measured")
    found.add_argument("--backend", choices=["cuda", "host"], default="cuda")
    found.add_argument("--steps", type=int)
    found.add_argument("--interval", type=int)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--limit", type=float)
    found.add_argument("--plan-folder", type=pathlib.Path)
    found.add_argument("--compile-only", action="store_true")
    found.add_argument("--set", action="append", default=[])
    found.set_defaults(**defaults)
    return found


def plan(options, folder, name, *settings, shardc=None):
    """The plan of that name in the folder, which is compiled unless it is there. It says each step."""
    path = folder / f"{name}.plan"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    sets = [f"--set={text}" for text in ["logger.log_interval=1", *settings, *options.set]]
    done = subprocess.run([shardc or options.shardc, "dump-plan", options.recipe, "-o", path, *sets], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return path


def run(options, program, plan, *more, isOver=None, **environment):
    """[(time, line)] of a run's output, starting with an empty folder of saves, until its end or until `isOver` holds
    for a line; the run is then killed."""
    shutil.rmtree(options.folder, ignore_errors=True)
    process = subprocess.Popen([program, plan, f"--backend={options.backend}", *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, **environment})
    lines, ended = [], False
    for line in process.stdout:  # to the end of all its processes
        if ended:
            continue
        lines.append((time.monotonic(), line))
        if isOver and isOver(line):
            ended = True
            process.kill()
    status = process.wait()
    if isOver and not ended or not isOver and status != 0:
        sys.exit(f"status {status}\n{''.join(line for _, line in lines[-20:])}")
    return lines


def step_of(line):
    found = re.match(r"step (\d+)/", line)
    return int(found[1]) if found else None
