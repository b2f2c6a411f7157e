#!/usr/bin/env python3
"""Tests pipelines with one process per rank: losses must be those of one process, and messages must be right when a
rank of some stage is killed or stopped. Needs only Python.

    pipeline_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. Faults strike one of four stages, or, with SHARDC_LONG=1, a rank of each
stage, with four and with eight ranks.
"""

import os
import re
import signal

import launch_runs as launch
from launch_runs import expect

STAGES = 4
SHAPES = [(4, 1), (4, 2)] if os.environ.get("SHARDC_LONG") == "1" else [(4, 1)]  # stages, ranks of each
LAUNCH = ["model.num_layers=4", f"model.pipeline_model_parallel_size={STAGES}", "model.hidden_size=32", "model.ffn_hidden_size=64",
          "model.share_embeddings_and_output_weights=false"]
LIMIT = 60  # seconds for a transfer that never ends


def settings(shape):
    stages, data = shape
    return [*LAUNCH, f"cluster.gpus_per_node={stages * data}"]


def struck(shape):
    """The ranks that faults strike: one of each stage, or only one."""
    stages, data = shape
    ranks = [stage * data + stage % data for stage in range(stages)]
    return ranks if len(SHAPES) > 1 else ranks[1:2]


def start(place, shape):
    plan = place.plan(*settings(shape), steps=launch.LONG, timeout=LIMIT)
    process = place.start("run", ["shardc-run", plan, "--processes"])
    process.await_text("step 3/")
    return process


def stage_of(shape, rank):
    return f"stage {rank // shape[1] + 1} of {shape[0]}"


def expect_place(process):
    """The message must name the op, its recipe line and, for ops of a microbatch, the microbatch."""
    expect(re.search(r"'\w+: .* \(.+:\d+\)'", process.err), "it does not name op and recipe line", process)


def check_agree(place):
    """Losses with one process per rank must be those of one process, with graphs, without graphs, and op by op."""
    for shape in SHAPES:
        plan = place.plan(*settings(shape), steps=4)
        plain = place.plain_losses(plan)
        for name, options in (("processes", ["--processes"]), ("no-graph", ["--no-graph"]), ("check", ["--check"]),
                              ("checked-processes", ["--processes", "--check"])):
            metrics = place.metrics(name)
            process = place.start(name, ["shardc-run", plan, f"--metrics={metrics}", *options])
            launch.expect_status(0, process)
            launch.expect_same(name, plain, place.losses(name))
            launch.expect_no_orphans()


def check_transfers(place):
    """6,000 transfers. If the system delayed what the receiver first sends, each would need 200 ms, and all together
    five times the watchdog's time."""
    stages, steps, microbatches = 2, 50, 60
    wide = [f"model.num_layers={stages}", f"model.pipeline_model_parallel_size={stages}", "model.hidden_size=32",
            "model.ffn_hidden_size=64", f"cluster.gpus_per_node={stages}", "train.micro_batch_size=1"]
    process = place.start("run", ["shardc-run", place.plan(*wide, f"train.global_batch_size={microbatches}", steps=steps), "--processes"])
    launch.expect_status(0, process)


def check_killed(place):
    for shape in SHAPES:
        for rank in struck(shape):
            process = start(place, shape)
            os.kill(process.children()[rank], signal.SIGKILL)
            launch.expect_end(process, 3, [f"rank {rank} (process", stage_of(shape, rank)])
            expect_place(process)


def check_stopped(place):
    """A message must name the stopped rank, its stage, and the op in which others wait for it."""
    for shape in SHAPES:
        for rank in struck(shape):
            process = start(place, shape)
            os.kill(process.children()[rank], signal.SIGSTOP)
            words = [f"rank {rank}, {stage_of(shape, rank)}, fell behind: rank", "distributed_timeout_minutes) has expired; rank ", "[rank-stuck]"]
            launch.expect_end(process, 3, words)
            expect_place(process)


CHECKS = {"agree": check_agree, "transfers": check_transfers, "killed": check_killed, "stopped": check_stopped}

if __name__ == "__main__":
    launch.run_check(CHECKS)
