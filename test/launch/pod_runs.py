#!/usr/bin/env python3
"""Runs `shardc run` as the pods of a job, with the variables of each operator: pod_runs.py CHECK [SHARDC_FOLDER].

Losses must be bitwise equal to those of one process."""

import signal

import elastic_runs
import launch_runs as launch
from launch_runs import expect


OPERATORS = ("TrainJob", "PyTorchJob", "Volcano", "JobSet", "none")


def variables(operator, pod, pods, ranks, address, port):
    """What the operator sets in a pod, and the options that docs/kubernetes.md says to add."""
    torch = {"PET_NNODES": pods, "PET_NODE_RANK": pod, "PET_NPROC_PER_NODE": ranks, "PET_MASTER_ADDR": address, "PET_MASTER_PORT": port}
    pods_as_ranks = {"RANK": pod, "WORLD_SIZE": pods, "MASTER_ADDR": address, "MASTER_PORT": port}
    nodes, master, here = f"--nodes={pods}", f"--master={address}:{port + 1}", f"--set=cluster.gpus_per_node={ranks}"
    return {
        "TrainJob": (torch, []),
        "PyTorchJob": (torch | pods_as_ranks | {"WORLD_SIZE": pods * ranks, "PET_NPROC_PER_NODE": "auto"}, [here]),
        "Volcano": (pods_as_ranks, [here]),
        "JobSet": ({"JOB_COMPLETION_INDEX": pod}, [nodes, master, here]),
        "none": ({}, [nodes, f"--node-rank={pod}", master, here]),
    }[operator]


def start_pods(place, operator, pods, port=None, prefix=(), address="127.0.0.1", steps=6, options=()):
    """Starts the pods; `prefix` has the words before the command of each."""
    port = port or launch.free_port()
    ranks = launch.RANKS // pods
    command = ["shardc", "run", place.recipe(steps=steps), f"--metrics={place.metrics(operator)}", *options]
    started = []
    for pod in range(pods):
        given, added = variables(operator, pod, pods, ranks, address, port)
        given |= {"SHARDC_JOB_SECRET": "of this test alone"}
        started.append(place.start(f"{operator}{pod}", [*(prefix[pod] if prefix else ()), *command, *added], {name: str(value) for name, value in given.items()}))
    return started


def check_operators(place):
    """Two pods of two ranks."""
    plain = place.plain_losses(place.plan(steps=6))
    for operator in OPERATORS:
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
        for operator in OPERATORS:
            launch.expect_status(0, *start_pods(place, operator, 4, 29500, prefix, "10.91.7.1", options=["--ports=30000-30007"]))
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
    pods = start_pods(place, "TrainJob", 2, options=["--ports=30000-30000"])
    launch.expect_status(1, *pods)
    expect("no port of --ports=30000-30000 is free" in pods[0].err + pods[1].err, "that ports are missing is not said", *pods)
    for given, options, words in (
        ({"PET_NNODES": "1:4"}, (), "PET_NNODES is '1:4'; it must be a number"),
        ({"PET_NNODES": "2"}, (), "the environment has no PET_NODE_RANK"),
        ({"JOB_COMPLETION_INDEX": "0"}, (), "JOB_COMPLETION_INDEX says that this is a pod of several (JobSet, or an indexed Job)"),
        ({}, ("--nodes=2",), "nothing says which of the 2 nodes this is"),
        ({}, ("--nodes=2", "--node-rank=2"), "--node-rank is 2; it must be a number from 0 to 1"),
        ({"JOB_COMPLETION_INDEX": "1"}, ("--nodes=2",), "give --master, or set MASTER_ADDR"),
        ({}, ("--nodes=2", "--node-rank=0", "--master=a:b"), "the port of --master is 'b'"),
        ({}, ("--node-rank=0",), "--node-rank and --master need --nodes"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, ("--nodes=2",), "torchrun has started this process as a rank"),
        ({}, ("--ports=9-1",), "--ports is '9-1'"),
    ):
        process = place.start("refused", ["shardc", "run", str(place.recipe()), *options], given)
        launch.expect_status(2, process)
        expect(words in process.err, f"'{words}' is not said", process)


CHECKS = {"operators": check_operators, "networks": check_networks, "ends": check_ends}


if __name__ == "__main__":
    launch.run_check(CHECKS)
