#!/usr/bin/env python3
"""Trains small recipes in pipelines. Needs only Python.

    pipeline_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  stages, schedules, microbatches, groups of them, strategies, reductions of each
              microbatch or of a step, ranks of a stage, groups of them with and without
              state sharded between them, tensor-parallel ranks, slices of sequences, tied tables, recomputation,
              evaluations; compared with one rank: losses and norms of 5 steps, and gradients of the first, within 1e-5 relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the
              rows. Some of them run unless SHARDC_LONG=1.
    slices    tensor 2, sequence parallelism, 2 stages, context 2 and FSDP 2, each schedule and each way of exchanging; without
              stages rows in pieces; and one rank: losses of 5 steps, and gradients of the first, within 1e-5 relative
    same      any schedule, recomputation, and a process for each rank to the bit
    overlap   passes of two microbatches in one segment, and in two: to the bit. Of layers with experts (RECIPE has some) or without, under
              each strategy
    layouts   saved by one pipeline, loaded by another one or by none: weights and moments to the bit
"""

import itertools
import json
import operator
import os
import pathlib
import random
import re
import sys
import tempfile

from compare_runs import FULL, LONG, STRATEGIES, equal, run_check, strategy_settings
from hybrid_runs import SAVED, batch, close, compare, under, with_gradients, with_state
from matrix import name_of, table
from tensor_runs import SIZES

ROWS = 4  # of the table, unless all run
STEPS = 5
LAYERS = 12  # divisible by every number of stages
SELECTIVE = ["model.recompute_granularity=selective", "model.recompute_modules=[core_attn, layernorm, mlp]"]
RECOMPUTE = {"none": [], "selective": SELECTIVE, "full": FULL}
AXES = {
    "stages": (2, 3, 4),
    "schedule": ("1f1b", "interleaved", "zero_bubble", "zb_v", "dual_pipe_v", "looped_bfs", "zero_bubble_greedy"),
    "microbatches": (1, 2, 3, 5, 8),
    "group": (0, 3, 5),  # of microbatches that chunks take turns with; 0: as many as there are stages
    "strategy": tuple(STRATEGIES),
    "reduces": ("microbatch", "step"),
    "data": (1, 2, 4),
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),
    "tensor": (1, 2),
    "context": (1, 2),
    "tied": (False, True),
    "recompute": tuple(RECOMPUTE),
    "per_token": (False, True),
    "evaluates": (False, True),
}


def has_order(schedule, stages, microbatches, group):
    """Whether a schedule orders so many microbatches, of which chunks take turns with a group."""
    if schedule == "interleaved":
        return microbatches <= group or not 0 < microbatches % group < stages
    return schedule != "dual_pipe_v" or microbatches >= 2 * stages


def is_valid(row):
    if row["instances"] > 1 and (row["data"] < 2 or row["strategy"] == "no_shard"):
        return False
    if row["reduces"] == "step" and row["strategy"] not in ("optim_grads", "optim_grads_params"):
        return False
    if row["outer"] != "no_shard" and (row["instances"] == 1 or row["strategy"] != "optim_grads_params"):
        return False
    stages, microbatches, group = row["stages"], row["microbatches"], row["group"]
    if group > 0 and (row["schedule"] != "interleaved" or not stages <= group <= microbatches):
        return False
    return has_order(row["schedule"], stages, microbatches, group or stages) and \
        row["stages"] * row["data"] * row["tensor"] * row["context"] <= 8


CHUNKED = ("interleaved", "zb_v", "dual_pipe_v", "looped_bfs")
SCHEDULES = {"1f1b": [], **{name: [f"model.pipeline_schedule={name}"] for name in ("zero_bubble", "zero_bubble_greedy")},
             **{name: [f"model.pipeline_schedule={name}", "model.virtual_pipeline_model_parallel_size=2"] for name in CHUNKED},
             "overlap": ["model.virtual_pipeline_model_parallel_size=2"]}


def pipeline(stages=1, strategy="no_shard", data=1, instances=1, tensor=1, schedule="1f1b", context=1, group=0, outer="no_shard",
             reduces="microbatch"):
    return [*strategy_settings(strategy), *SCHEDULES[schedule], f"model.pipeline_model_parallel_size={stages}",
            f"model.tensor_model_parallel_size={tensor}", f"model.context_parallel_size={context}",
            f"cluster.gpus_per_node={stages * data * tensor * context}",
            f"ddp.num_distributed_optimizer_instances={instances}", f"ddp.outer_dp_sharding_strategy={outer}",
            *([f"model.microbatch_group_size_per_vp_stage={group}"] if group > 0 else []),
            *(["ddp.reduce_grads=step"] if reduces == "step" else [])]


def model(row):
    layers = 2 * LAYERS if row["schedule"] in CHUNKED and row["stages"] == 4 else LAYERS
    settings = [*SIZES, f"model.num_layers={layers}", f"train.train_iters={STEPS}", "train.micro_batch_size=1",
                f"train.global_batch_size={row['microbatches'] * row['data']}",
                f"model.share_embeddings_and_output_weights={str(row['tied']).lower()}",
                f"model.calculate_per_token_loss={str(row['per_token']).lower()}"]
    return settings + (["validation.eval_interval=2", "validation.eval_iters=3"] if row["evaluates"] else [])


def check_one_rank(runner):
    rows = table(AXES, is_valid, random.Random(int(os.environ.get("SEED", "1"))), None if LONG else ROWS)
    for row in rows:
        expected = with_gradients(runner, *model(row), *pipeline())
        own = pipeline(**{axis: row[axis] for axis in ("stages", "strategy", "data", "instances", "tensor", "schedule", "context",
                                                      "group", "outer", "reduces")})
        compare(name_of(row), with_gradients(runner, *model(row), *own, *RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


def check_slices(runner):
    sizes = [*SIZES, "model.num_layers=4", "train.micro_batch_size=1", "train.global_batch_size=8", f"train.train_iters={STEPS}"]
    expected = with_gradients(runner, *sizes, *pipeline())
    ways = ("p2p", "a2a", "all_gather")
    cases = [*itertools.product(("1f1b", "interleaved", "zero_bubble"), (*ways, "a2a+p2p"), (1,)), *itertools.product(("1f1b",), ways, (2,))]
    for schedule, way, pieces in cases:
        levels = way == "a2a+p2p"  # which need four ranks
        stages = 2 if pieces == 1 else 1  # rows in pieces have no stages
        layout = pipeline(stages, "optim_grads_params", 2, tensor=1 if levels else 2, schedule=schedule, context=4 if levels else 2)
        layout += [f'model.cp_comm_type=["{way}"]', f"model.sequence_parallel={str(not levels).lower()}"]
        layout += ["model.hierarchical_context_parallel_sizes=[2, 2]"] if levels else []
        layout += ["model.tp_comm_overlap=true", f"model.tp_comm_overlap_pieces={pieces}"] if pieces > 1 else []
        name = f"{schedule}, {way}, 16 ranks" if stages > 1 else f"{way}, rows in {pieces} pieces, 8 ranks"
        compare(name, with_gradients(runner, *sizes, *layout), expected)


OVERLAPS = (("no_shard", (2, 2, 2, 1), "microbatch", "dual_pipe_v"), ("optim", (2, 2, 2, 1), "microbatch", "dual_pipe_v"),
            ("optim_grads_params", (2, 2, 2, 1), "microbatch", "dual_pipe_v"), ("optim_grads", (2, 4, 2, 1), "step", "dual_pipe_v"),
            ("no_shard", (3, 1, 1, 2), "microbatch", "dual_pipe_v"),  # stages, ranks, parts of experts, of layers
            ("no_shard", (2, 2, 2, 1), "microbatch", "overlap"), ("optim", (2, 4, 2, 1), "microbatch", "overlap"),
            ("optim_grads_params", (1, 2, 2, 1), "microbatch", "overlap"), ("no_shard", (1, 2, 2, 1), "microbatch", "overlap"),
            ("optim_grads", (1, 4, 2, 1), "step", "overlap"), ("optim_grads_params", (1, 4, 2, 2), "microbatch", "overlap"))
COMBINED = "model.overlap_moe_expert_parallel_comm=true"  # upstream's combined 1F1B


def check_same(runner):
    pipelines = (2, 3, "1f1b"), (4, 5, "zero_bubble"), (3, 6, "interleaved"), (2, 5, "zb_v"), (2, 5, "dual_pipe_v"), (3, 4, "looped_bfs")
    for stages, microbatches, schedule in runner.with_kernels(pipelines):
        name = f"{stages} stages, {microbatches} microbatches, {schedule}"
        settings = [f"model.num_layers={LAYERS}", "train.micro_batch_size=1", f"train.global_batch_size={2 * microbatches}",
                    "train.train_iters=4", *pipeline(stages, "optim_grads_params", 2, schedule=schedule),
                    "validation.eval_interval=2", "validation.eval_iters=2"]
        expected = runner.run_plan(*settings)
        for seed in (1, 2):
            equal(f"{name}, seed {seed}", expected, runner.run_plan(*settings, options=[f"--seed-schedule={seed}"]))
        equal(f"{name}, all layers computed again", expected, runner.run_plan(*settings, *FULL))
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
        equal(f"{name}, a process for each rank", expected, [(each["loss"], each["grad_norm"]) for each in records])


def apart(runner, settings):
    """Settings of the same schedule with the passes of cells one after the other."""
    text = runner.call(["shardc", "dump-plan", runner.recipe, "--emit=schedule", *runner.arguments(settings)])
    path = pathlib.Path(runner.folder.name, "apart.csv")
    path.write_text(re.sub(r"\((\w+);(\w+)\)OVERLAP_F_B", r"\1,\2", text))
    return [*(each for each in settings if "pipeline_schedule=" not in each and each != COMBINED),
            f'model.pipeline_schedule_csv="{path}"']


def alone(runner, name, settings):
    """Compares one stage that overlaps microbatches with one that runs them one after the other. Returns the losses and norms.
    The first pass of a microbatch computes the gradient of the output layer and leaves it in bf16 for the second one, which adds it
    to the fp32 sum."""
    expected, found = (with_gradients(runner, *some) for some in ([each for each in settings if each != COMBINED], settings))
    if found[0][0][0] != expected[0][0][0]:
        sys.exit(f"{name}: the first losses differ")
    for parameter, values in expected[1].items():
        most = max(map(abs, map(operator.sub, found[1][parameter], values)))
        if most > (max(map(abs, values)) / 256 if parameter == "output_layer.weight" else 0):
            sys.exit(f"{name}: the gradient of {parameter} differs by {most:.3e}")
    print(f"{name}: {len(expected[1])} gradients as without overlap")
    return found[0]


def check_traced(runner, name, settings):
    """The page of a trace has the cells of the first stage's schedule, each after the one before."""
    trace, page = (pathlib.Path(runner.folder.name, each) for each in ("trace.json", "page.html"))
    runner.run_plan(*settings, options=[f"--trace={trace}"])
    runner.call(["shardc", "report", runner.recipe, *runner.arguments(settings), f"--trace={trace}", "--seconds=0", "-o", page])
    row = json.loads(re.search('(?s)type="application/json"[^>]*>(.*?)</script>', page.read_text())[1])["plans"][0]["run"]["trace"]["schedule"][0]
    text = runner.call(["shardc", "dump-plan", runner.recipe, "--emit=schedule", *runner.arguments(settings)])
    cells = [[int(each) for each in re.findall(r"[FB](\d+)", cell)] for cell in text.splitlines()[0].split(",")]
    drawn = [[microbatch, microbatch + row["shifts"][segment]][:2 if row["shifts"][segment] else 1] for segment, microbatch, *_ in row["passes"]]
    if drawn != cells:
        sys.exit(f"{name}: the page of the trace has the cells {drawn}, the schedule {cells}")
    if any(begin + length > after + 1 for (_, _, begin, length, _), (_, _, after, *_) in itertools.pairwise(row["passes"])):
        sys.exit(f"{name}: passes of the trace lie over each other: {row['passes']}")
    print(f"{name}: the page of a trace has {len(cells)} cells")


def check_overlap(runner):
    for strategy, (stages, data, experts, tensor), reduces, schedule in runner.in_turn(OVERLAPS, with_all=LONG):
        chunks = 1 if stages == 1 else 2
        settings = [f"model.num_layers={2 * chunks * stages}", "train.micro_batch_size=1", "train.train_iters=3",
                    f"train.global_batch_size={(6 if schedule == 'overlap' else 7) * data}",
                    *pipeline(stages, strategy, data, tensor=tensor, schedule="1f1b" if stages == 1 else schedule, reduces=reduces),
                    f"model.expert_model_parallel_size={experts}", *["model.sequence_parallel=true"] * (tensor > 1)]
        if schedule == "overlap":
            settings += [COMBINED, "model.moe_token_dispatcher_type=alltoall", "mixed_precision=bf16_mixed"]
        name = f"{schedule}, {strategy}, {stages} stages, {data} ranks, {experts} parts of experts, {tensor} of layers, reduced each {reduces}"
        if stages == 1:
            expected = alone(runner, name, settings)
        else:
            expected = runner.run_plan(*apart(runner, settings))
            equal(name, expected, runner.run_plan(*settings))
        plan = pathlib.Path(runner.folder.name, "job.plan").read_text()
        if "steady body mb -" not in plan:
            sys.exit(f"{name}: no passes overlap")
        if schedule == "overlap":
            check_traced(runner, name, settings)
        equal(f"{name}, another order of ops", expected, runner.run_plan(*settings, options=["--seed-schedule=1"]))
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
        equal(f"{name}, a process for each rank", expected, [(each["loss"], each["grad_norm"]) for each in records])


def check_layouts(runner):
    """A plan with one role can print the state that it loaded. For other plans, the losses after the load are
    compared."""
    sizes = [*SIZES, *batch(24, steps=SAVED + 2), f"model.num_layers={LAYERS // 2}", "train.micro_batch_size=2"]
    stages = "model.pipeline_model_parallel_size="
    whole = {"one rank": under("optim_grads_params", 1), "FSDP on 3": under("optim_grads_params", 3)}
    layouts = {**whole, "6 stages": [*under("no_shard", 6), f"{stages}6"],
               "2 stages of 2": [*under("optim_grads_params", 4), f"{stages}2"],
               "3 stages with 2 chunks": [*under("no_shard", 3), f"{stages}3", *SCHEDULES["interleaved"]],
               "3 stages in a V": [*under("no_shard", 3), f"{stages}3", *SCHEDULES["zb_v"]],
               "3 stages with 2 chunks under FSDP": pipeline(3, "optim_grads_params", 2, schedule="interleaved", reduces="step"),
               "2 stages with zero bubble in 2 groups": pipeline(2, "optim_grads", 4, instances=2, schedule="zero_bubble", reduces="step"),
               "2 stages of 3 in torch_dist": [*pipeline(2, "optim", 3), "checkpoint.ckpt_format=torch_dist"],
               "3 stages of 2 groups of 2": [*under("optim_grads", 12, groups=2), f"{stages}3"]}
    for source in runner.in_turn(("6 stages", "3 stages with 2 chunks under FSDP") if not LONG else layouts):
        saved = [*sizes, *layouts[source]]
        with tempfile.TemporaryDirectory() as folder:
            steps = runner.run(*saved)
            runner.run(*saved, f'checkpoint.save="{folder}/c"', f"train.exit_interval={SAVED}")
            states = []
            for target, settings in layouts.items():
                loading = [*sizes, *settings, f'checkpoint.load="{folder}/c"', "checkpoint.convert_on_load=true"]
                if target in whole:
                    rest, state = with_state(runner, loading)
                    states.append(state)
                else:
                    rest = runner.run(*loading)
                (equal if source == target else close)(f"{source} to {target}", steps[SAVED:], rest)
            if any(state != states[0] for state in states):
                sys.exit(f"{source}: state differs")
            print(f"{source}: {sum(map(len, states[0].values()))} elements of state are the same under {len(states)} layouts")


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "slices": check_slices, "same": check_same, "overlap": check_overlap, "layouts": check_layouts})
