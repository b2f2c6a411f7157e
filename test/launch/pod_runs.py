#!/usr/bin/env python3
"""Runs recipes/kubernetes/start_ranks.sh as the pods of a job, with the variables of each operator: pod_runs.py CHECK [SHARDC_FOLDER].

Losses must be bitwise equal to those of one process."""

import signal

import elastic_runs
import launch_runs as launch
from launch_runs import expect

SCRIPT = launch.RECIPES / "kubernetes" / "start_ranks.sh"


def variables(operator, pod, pods, ranks, address, port):
    """What the operator sets in a pod, and what docs/kubernetes.md says to add."""
    torch = {"PET_NNODES": pods, "PET_NODE_RANK": pod, "PET_NPROC_PER_NODE": ranks, "PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
    pods_as_ranks = {"RANK": pod, "WORLD_SIZE": pods, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {
        "TrainJob": torch,
        "PyTorchJob": torch | pods_as_ranks | {"WORLD_SIZE": pods * ranks},
        "Volcano": pods_as_ranks | {"RANKS_PER_NODE": ranks},
        "JobSet": {"JOB_COMPLETION_INDEX": pod, "NODES": pods, "MASTER_ADDR": address, "MASTER_PORT": port, "RANKS_PER_NODE": ranks},
    }[operator]


def start_pods(place, operator, pods, port=None, prefix=(), address="127.0.0.1", steps=6, options=()):
    """Starts the pods; `prefix` has the words before the command of each."""
    port = port or launch.free_port()
    command = ["bash", SCRIPT, place.recipe(steps=steps), f"--metrics={place.metrics(operator)}", *options]
    started = []
    for pod in range(pods):
        given = variables(operator, pod, pods, launch.RANKS // pods, address, port)
        given |= {"SHARDC_JOB_SECRET": "of this test alone"}
        started.append(place.start(f"{operator}{pod}", [*(prefix[pod] if prefix else ()), *command],
                                   {name: str(value) for name, value in given.items()}))
    return started


def check_operators(place):
    """Two pods of two ranks."""
    plain = place.plain_losses(place.plan(steps=6))
    for operator in ("TrainJob", "PyTorchJob", "Volcano", "JobSet"):
        launch.expect_status(0, *start_pods(place, operator, 2))
        expect(place.losses(operator) == plain, f"{operator}: other losses")


def check_networks(place):
    """Four pods, each with a network of its own."""
    elastic_runs.need_namespaces()
    plain = place.plain_losses(place.plan(steps=6))
    networks = elastic_runs.Networks(["a", "b", "c", "d"])
    try:
        networks.begin()
        prefix = [["ip", "netns", "exec", networks.of(name)] for name in networks.names]
        for operator in ("TrainJob", "JobSet"):
            launch.expect_status(0, *start_pods(place, operator, 4, 29500, prefix, "10.91.7.1"))
            expect(place.losses(operator) == plain, f"{operator}: other losses")
    finally:
        networks.end()


def check_ends(place):
    """SIGTERM to one pod ends all after a step with a save; a wrong recipe has status 1; and what is not known is refused."""
    pods = start_pods(place, "JobSet", 2, steps=100000, options=[f'--set=checkpoint.save="{place.folder}/saved"', "--set=logger.log_interval=1"])
    pods[0].await_text("step 3/")
    pods[1].popen.send_signal(signal.SIGTERM)
    launch.expect_status(0, *pods)
    expect("saved step" in pods[0].out, "nothing was saved", *pods)
    launch.expect_status(1, *start_pods(place, "TrainJob", 2, options=["--set=train.train_iters=-1"]))
    recipe = str(place.recipe())
    for given, words in (({"PET_NNODES": "1:4"}, "the number of nodes is '1:4'"), ({"NODES": "2"}, "which of the 2 nodes"),
                         ({"NODES": "2", "NODE_RANK": "2"}, "node 2 is not one of 2"), ({"NODES": "2", "NODE_RANK": "1"}, "set MASTER_ADDR"),
                         ({"RANKS_PER_NODE": "x"}, "the number of ranks of a node is 'x'")):
        process = place.start("refused", ["bash", SCRIPT, recipe], given)
        launch.expect_status(2, process)
        expect(words in process.err, f"'{words}' is not said", process)


CHECKS = {"operators": check_operators, "networks": check_networks, "ends": check_ends}


if __name__ == "__main__":
    launch.run_check(CHECKS)
