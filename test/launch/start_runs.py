#!/usr/bin/env python3
"""Starts plans of many layouts with one process per rank on the null backend. It creates channels as the CUDA backend
does, and computes nothing. Each plan must start, do three steps and end. Needs only Python.

    start_runs.py CHECK [SHARDC_FOLDER]

CHECK is the property to test; see CHECKS. SEED=n (1 by default) selects some layouts; all run with SHARDC_LONG=1.
"""

import os
import random
import re
import signal
import time

import launch_runs as launch
from launch_runs import expect

LONG = os.environ.get("SHARDC_LONG") == "1"
DRAWN = 6
RANKS_MAX = 64
STEPS = 3
SIZES = ["model.hidden_size=64", "model.num_attention_heads=8", "model.num_query_groups=8", "model.ffn_hidden_size=64",
         "model.share_embeddings_and_output_weights=false", "train.micro_batch_size=1", f"train.train_iters={STEPS}"]
SCHEDULES = {"1f1b": [], "interleaved": ["model.pipeline_schedule=interleaved", "model.virtual_pipeline_model_parallel_size=2"],
             "zero_bubble": ["model.pipeline_schedule=zero_bubble"]}
EXPERTS = ["model.num_moe_experts=8", "model.moe_router_topk=2", "model.moe_ffn_hidden_size=32", "model.moe_router_load_balancing_type=none"]
# Layouts within a stage: name, data-parallel ranks, tensor, context, strategy, further settings.
INNER = [
    ("one", 1, 1, 1, "no_shard", []),
    ("dp2", 2, 1, 1, "no_shard", []),
    ("dp4-fsdp", 4, 1, 1, "optim_grads_params", []),
    ("dp8-fsdp", 8, 1, 1, "optim_grads_params", []),
    ("dp4-optim", 4, 1, 1, "optim", []),
    ("tp4", 1, 4, 1, "no_shard", []),
    ("dp2-tp2", 2, 2, 1, "optim_grads_params", []),
    ("cp4", 1, 1, 4, "no_shard", []),
    ("dp2-cp2", 2, 1, 2, "optim_grads_params", []),
    ("dp2-tp2-cp2", 2, 2, 2, "optim_grads_params", []),
    ("dp4-ep2", 4, 1, 1, "optim_grads_params", [*EXPERTS, "model.expert_model_parallel_size=2"]),
    ("dp4-ep4-tp2", 4, 2, 1, "optim_grads_params", [*EXPERTS, "model.expert_model_parallel_size=4"]),
    ("hsdp4", 4, 1, 1, "optim_grads_params", ["ddp.num_distributed_optimizer_instances=2"]),
    ("hsdp8-optim", 8, 1, 1, "optim_grads_params", ["ddp.num_distributed_optimizer_instances=2", "ddp.outer_dp_sharding_strategy=optim"]),
]


def layouts():
    """(name, ranks, strategy, settings) of each layout."""
    for stages in range(1, 9):
        for schedule in SCHEDULES if stages > 1 else ["1f1b"]:
            for inner, data, tensor, context, strategy, further in INNER:
                ranks = stages * data * tensor * context
                if ranks > RANKS_MAX:
                    continue
                settings = [*SIZES, *SCHEDULES[schedule], f"model.num_layers={2 * stages}", f"cluster.gpus_per_node={min(ranks, 8)}",
                            f"cluster.nodes={max(ranks // 8, 1)}" if ranks <= 8 or ranks % 8 == 0 else "cluster.nodes=1",
                            f"model.pipeline_model_parallel_size={stages}", f"train.global_batch_size={data * stages}"]
                if ranks > 8 and ranks % 8:
                    settings += [f"cluster.gpus_per_node={ranks}"]
                if tensor > 1:
                    settings += [f"model.tensor_model_parallel_size={tensor}", "model.sequence_parallel=true"]
                if context > 1:
                    settings += [f"model.context_parallel_size={context}", "model.cp_comm_type=[p2p]"]
                yield f"pp{stages}-{schedule}-{inner}", ranks, strategy, [*settings, *further]


def start(place, plan, name="run", **environment):
    return place.start(name, ["shardc-run", plan, "--backend=null", "--processes"], **environment)


def check_layouts(place):
    """All layouts must compile and start."""
    rows = list(layouts())
    if not LONG:
        rows = random.Random(int(os.environ.get("SEED", "1"))).sample(rows, DRAWN)
    wrong, most = [], 0
    for name, ranks, strategy, settings in rows:
        plan = place.plan(*settings, strategy=strategy, steps=STEPS)
        begin = time.monotonic()
        process = start(place, plan, name)
        status = process.wait()
        most = max(most, time.monotonic() - begin)
        if status != 0 or f"done after {STEPS} of {STEPS} steps" not in process.out or process.err:
            wrong.append(f"{name} of {ranks} ranks: status {status}, {process.err.strip()[:300]}")
        plan.unlink()
    launch.expect_no_orphans()
    print(f"{len(rows)} layouts, {len(wrong)} do not start")
    if LONG:
        print(f"the longest took {most:.1f} s")
    expect(not wrong, "\n".join(wrong))


def check_refused(place):
    """If one rank is refused something, its group does without it, and other groups keep it. The run continues."""
    for refused, told in (("windows", "no-windows"), ("buffers", "no-registration")):
        plan = place.plan(*SIZES, "model.num_layers=4", "model.pipeline_model_parallel_size=2", "cluster.gpus_per_node=8",
                          "ddp.nccl_ub=true", "train.global_batch_size=8", strategy="optim_grads_params", steps=STEPS)
        process = start(place, plan, refused, SHARDC_FAULT=f"1:refuses-{refused}")
        launch.expect_status(0, process)
        print(process.err)


CHECKS = {"layouts": check_layouts, "refused": check_refused}

if __name__ == "__main__":
    launch.run_check(CHECKS)
