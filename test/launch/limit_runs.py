#!/usr/bin/env python3
"""Runs checks side by side that mostly wait, for a time limit of a minute or for the end of processes. Together they
take as long as the longest one, and a few seconds of one core. Needs only Python.

    limit_runs.py limits|slurm [SHARDC_FOLDER]

To run one of them alone: SCRIPT CHECK [SHARDC_FOLDER], as in CHECKS. Exits with 77 if one is skipped and none fails.
"""

import os
import pathlib
import signal
import sys
import tempfile

import launch_runs as launch

CHECKS = {
    "limits": [("launch_runs.py", "late"), ("launch_runs.py", "stopped"), ("launch_runs.py", "wrong-address"), ("fault_runs_of_hosts.py", "set-up"),
               ("stranger_runs.py", "frozen"), ("stranger_runs.py", "asked-stuck"), ("stranger_runs.py", "descriptors"),
               ("stranger_runs.py", "another-secret"), ("pipeline_runs.py", "stopped"), ("elastic_runs.py", "lost"), ("elastic_runs.py", "few"), ("restart_runs.py", "rank-zero")],
    "slurm": [("restart_runs.py", "requeue"), ("restart_runs.py", "lost-node"), ("restart_runs.py", "asked-batch")],
}
CHECKS["slurm"] += [("restart_runs.py", "lost-first")] if os.environ.get("SHARDC_LONG") == "1" else []  # four minutes
SKIPPED = 77


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    here, programs = pathlib.Path(__file__).resolve().parent, [os.path.abspath(folder) for folder in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        running = [launch.Process(pathlib.Path(folder), f"{script} {check}", [sys.executable, "-B", here / script, check, *programs], {})
                   for script, check in CHECKS[sys.argv[1]]]
        failed, skipped = [], []
        try:
            for process in running:
                status = process.popen.wait() # what it starts has time limits
                print(f"== {process.name}\n{process.out}{process.err}", flush=True)
                failed += [process.name] if status not in (0, SKIPPED) else []
                skipped += [process.name] if status == SKIPPED else []
        finally:
            for process in running: # if this process is interrupted; each check ends what it has started
                if process.popen.poll() is None:
                    process.popen.send_signal(signal.SIGINT)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if skipped:
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
