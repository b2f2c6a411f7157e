#!/usr/bin/env python3
"""Stops and resumes a job under each strategy. The losses and the last state must be bitwise equal to those of a job
that never stopped.

    resume_equal.py SHARDC SHARDC_RUN RECIPE [--backend cuda|host] [--strategies A,B] [--ranks N]
                    [--plans FOLDER [--compile-only]] [--folder FOLDER] [--set path=value ...]

Each strategy runs 40 steps without a stop; 20 steps with a save for which steps wait; 20 steps with a save in the
background, which must have the same bytes (not for PyTorch's format); and 20 more steps from that save. Compared are
the loss and gradient norm of every step, and the weights and moments of step 40 as both runs save them. With --plans,
compiled plans are kept and reused, so that a machine with only shardc-run can run them. On GPUs the test is skipped
unless SHARDC_GPU is 1. Runs there are bitwise reproducible only with model.deterministic_mode=true. If GPUs for several
jobs are visible, strategies run side by side.
"""

import argparse
import concurrent.futures
import filecmp
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile

import gpus

HALF, WHOLE = 20, 40
SHARDING = ["optim_grads_params", "optim_grads", "optim", "no_shard"]
HYBRID = {  # outer sharding and the strategy inside, in two instances
    "hsdp": ("no_shard", "optim_grads_params"),
    "hsdp_optim": ("no_shard", "optim"),
    "hfsdp": ("optim", "optim_grads_params"),
}
REPLICATED = ["ddp", "distributed"]
TORCH = ["torch_fsdp2", "torch_fsdp2_kept"]  # the second keeps gathered parameters until the backward pass


def under(strategy):
    if strategy in HYBRID:
        outer, inner = HYBRID[strategy]
        return [*under(inner), "ddp.num_distributed_optimizer_instances=2", f"ddp.outer_dp_sharding_strategy={outer}"]
    if strategy in TORCH:
        return [
            "dist.use_megatron_fsdp=false",
            "ddp.use_megatron_fsdp=false",
            "dist.use_torch_fsdp2=true",
            f"dist.torch_fsdp2_reshard_after_forward={'true' if strategy == 'torch_fsdp2' else 'false'}",
            "checkpoint.ckpt_format=torch_dcp",
            "model.share_embeddings_and_output_weights=false",
        ]
    if strategy in REPLICATED:
        distributed = "true" if strategy == "distributed" else "false"
        return [
            "dist.use_megatron_fsdp=false",
            "ddp.use_megatron_fsdp=false",
            "checkpoint.ckpt_format=torch_dist",
            f"ddp.use_distributed_optimizer={distributed}",
        ]
    return [
        "dist.use_megatron_fsdp=true",
        "ddp.use_megatron_fsdp=true",
        "checkpoint.ckpt_format=fsdp_dtensor",
        f"ddp.data_parallel_sharding_strategy={strategy}",
    ]


def jobs(strategy):
    """The settings of each run of a strategy. Folders are relative, since each strategy runs in a folder of its own."""
    stop = [f"train.exit_interval={HALF}"]
    first = {"waiting": ['checkpoint.save="waiting"', *stop]}
    if strategy not in TORCH:  # nobody saves torch_dcp in the background
        first["background"] = ['checkpoint.save="background"', "checkpoint.async_save=true", *stop]
    *_, saved = first
    return {
        "whole": ['checkpoint.save="whole"'],
        **first,
        "rest": [f'checkpoint.load="{saved}"', 'checkpoint.save="rest"'],
    }


def compile_plans(options, folder):
    base = [f"train.train_iters={WHOLE}", f"cluster.gpus_per_node={options.ranks}", "logger.log_interval=10"]
    for strategy in options.strategies:
        for job, settings in jobs(strategy).items():
            plan = folder / f"{strategy}.{job}.plan"
            if plan.exists():
                continue
            sets = [f"--set={text}" for text in [*base, *under(strategy), *settings, *options.set]]
            done = subprocess.run([options.shardc, "dump-plan", options.recipe, "-o", plan, *sets], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{strategy}, {job}: not compiled\n{done.stderr}")


def run(options, plan, place, environment):
    """The loss and gradient norm of each step."""
    metrics = place / "metrics.jsonl"
    command = [options.shardc_run, plan, f"--backend={options.backend}", f"--metrics={metrics}"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{plan.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]


def same_files(name, a, b, step):
    ours, theirs = (sorted((folder / f"iter_{step:07}").glob("__*.distcp")) for folder in (a, b))
    if not ours or [f.name for f in ours] != [f.name for f in theirs]:
        sys.exit(f"{name}: {a.name} has {len(ours)} files and {b.name} {len(theirs)}")
    for x, y in zip(ours, theirs):
        if not filecmp.cmp(x, y, shallow=False):
            sys.exit(f"{name}: {a.name} and {b.name} differ in {x.name} of step {step}")
    return sum(f.stat().st_size for f in ours)


def check(options, strategy, plans, environment):
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        place = pathlib.Path(name)
        losses = {job: run(options, plans / f"{strategy}.{job}.plan", place, environment) for job in jobs(strategy)}
        if len(losses["whole"]) != WHOLE or any(None in record for record in losses["whole"]):
            sys.exit(f"{strategy}: losses and gradient norms are {losses['whole']}")
        for job in list(losses)[1:]:
            expected = losses["whole"][HALF:] if job == "rest" else losses["whole"][:HALF]
            if losses[job] != expected:
                pairs = zip(losses[job], expected)
                first = next((i for i, (x, y) in enumerate(pairs) if x != y), "beyond the shorter")
                sys.exit(f"{strategy}, {job}: {len(losses[job])} steps, the first that differs is {first}")
        if "background" in losses:
            same_files(strategy, place / "waiting", place / "background", HALF)
        size = same_files(strategy, place / "whole", place / "rest", WHOLE)
    print(f"{strategy}: 20 + 20 steps are 40 to the bit, and so are {size} bytes of state", flush=True)


def places(options):
    """The environments of jobs that can run side by side: each has GPUs of its own."""
    if options.backend == "host":
        return [{}]
    names = gpus.visible()
    groups = [names[i:i + options.ranks] for i in range(0, len(names) - options.ranks + 1, options.ranks)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups]


def check_all(options, plans):
    free = queue.Queue()
    for environment in places(options):
        free.put(environment)

    def check_somewhere(strategy):
        environment = free.get()
        try:
            check(options, strategy, plans, environment)
        finally:
            free.put(environment)

    with concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
        for done in [pool.submit(check_somewhere, strategy) for strategy in options.strategies]:
            done.result()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("shardc_run")
    parser.add_argument("recipe")
    parser.add_argument("--backend", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--strategies", default=",".join([*SHARDING, *REPLICATED, *TORCH]))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plans", type=pathlib.Path)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--folder", help="where checkpoints go meanwhile")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    options.strategies = options.strategies.split(",")
    options.shardc_run = os.path.abspath(options.shardc_run)
    if options.backend == "cuda" and not options.compile_only:
        gpus.need_permission()
        gpus.need(options.ranks)
    with tempfile.TemporaryDirectory() as name:
        plans = (options.plans or pathlib.Path(name)).absolute()
        plans.mkdir(parents=True, exist_ok=True)
        compile_plans(options, plans)
        if not options.compile_only:
            check_all(options, plans)


if __name__ == "__main__":
    main()
