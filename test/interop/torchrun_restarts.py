"""Runs recipes/slurm/restarts_torchrun.sh with the real torchrun, and injects faults.

usage: torchrun_restarts.py BIN

BIN is the folder of shardc and shardc-run. torchrun is that of this Python. Three faults: a rank is killed; rank 0's
supervisor is killed; the second of two agents is killed with all its processes, and started again as a scheduler would.
Each time, torchrun must restart all ranks, and they must continue from the newest save to losses and parameters bitwise
equal to those of a run without a fault. Exits with 77 without torchrun.
"""

import contextlib
import importlib.util
import os
import pathlib
import signal
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
import launch_runs as launch
from launch_runs import expect

SETTINGS = ["checkpoint.save_interval=4", "train.train_iters=12"]
# The first start hangs after the first save until the fault.
STANDS_STILL = """#!/bin/bash
if [ "$STILL" = yes ] && [ "${TORCHELASTIC_RESTART_COUNT:-0}" = 0 ]; then export SHARDC_FAULT=hang@3:6; fi
exec shardc "$@"
"""


class Agents:
    """A job with torchrun's agents on this machine, with four ranks in all."""

    def __init__(self, place, program, name, nodes):
        self.place, self.name, self.port, self.saves = place, name, launch.free_port(), place.folder / f"saves-{name}"
        self.environment = {"NODES": str(nodes), "GPUS": str(launch.RANKS // nodes), "ENDPOINT": f"localhost:{self.port}", "JOB": name,
                            "SHARDC": str(program), "CHECKPOINTS": str(self.saves), "RESTARTS": "3"}
        self.agents = [self.start(0)]
        self.await_store() # the first agent holds it: a job ends with it
        self.agents += [self.start(number) for number in range(1, nodes)]

    def start(self, number, still="yes"):
        script = launch.RECIPES / "slurm" / "restarts_torchrun.sh"
        command = ["bash", script, self.place.recipe(), *SETTINGS, f'checkpoint.save="{self.saves}"']
        return self.place.start(f"{self.name}-{number}-{len(self.place.started)}", command, {**self.environment, "STILL": still})

    def await_store(self):
        end = time.monotonic() + launch.WATCHDOG
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                expect(time.monotonic() < end, "torchrun does not listen", *self.agents)
                time.sleep(0.05)

    def await_text(self, text):
        """Waits for a text of rank 0, which may belong to either agent."""
        end = time.monotonic() + launch.WATCHDOG
        while not any(text in agent.out for agent in self.agents):
            expect(time.monotonic() < end and all(agent.popen.poll() is None for agent in self.agents), f"no '{text}'", *self.agents)
            time.sleep(0.05)

    def lose(self, number):
        """Kills an agent with all processes that it has started."""
        agent = self.agents[number]
        found = [agent.popen.pid]
        for pid in found:
            found += agent.children(pid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.popen.wait()

    def supervisors(self):
        """The processes that the first agent has started, by local rank."""
        return sorted(self.agents[0].children())

    def expect_end(self, plain):
        launch.expect_status(0, *self.agents)
        said = "".join(agent.out + agent.err for agent in self.agents)
        expect("continuing after step 4" in said and "done after 12 of 12 steps" in said, f"{self.name} did not go on", *self.agents)
        done = self.place.start("diff", ["shardc", "ckpt", "diff", plain, self.saves])
        expect(done.wait() == 0 and "nothing differs" in done.out, f"{self.name}: other parameters", done, *self.agents)
        print(f"{self.name}: went on after step 4 to the same parameters")


def check(place):
    program = place.folder / "stands-still"
    program.write_text(STANDS_STILL)
    program.chmod(0o755)
    plain = place.folder / "plain"
    first = place.start("plain", ["shardc", "run", place.recipe(), *[f"--set={setting}" for setting in SETTINGS],
                                  f'--set=checkpoint.save="{plain}"'])
    launch.expect_status(0, first)
    rank, leader, node = Agents(place, program, "rank", 1), Agents(place, program, "leader", 1), Agents(place, program, "node", 2)
    for job in (rank, leader, node):
        job.await_text("saved step 4 to")
    supervisors = rank.supervisors()
    expect(len(supervisors) == launch.RANKS, f"torchrun has started {supervisors}", rank.agents[0])
    os.kill(rank.agents[0].children(supervisors[2])[0], signal.SIGKILL)
    os.kill(leader.supervisors()[0], signal.SIGKILL)
    node.lose(1)
    node.agents[1] = node.start(1, still="no")
    for job in (rank, leader, node):
        job.expect_end(plain)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: there is no torch")
        sys.exit(launch.SKIPPED)
    os.environ["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    sys.argv[1:] = ["torchrun", *sys.argv[1:]]
    launch.run_check({"torchrun": check})
