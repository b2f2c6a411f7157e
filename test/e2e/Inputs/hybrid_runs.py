#!/usr/bin/env python3
"""Trains small recipes with state sharded inside groups of ranks, and replicated or sharded between them. Needs only
Python.

    hybrid_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  2 groups of 2 and of 4 ranks, every strategy inside, one and three microbatches; compared with one rank:
              losses of 5 steps, and gradients of the first, within 1e-5 relative
    average   sums scaled before and averages in the collectives: likewise
    divided   optimizer state sharded between groups as well, 2 groups of 1, 2 and 4 ranks and 3 of 2: likewise
    average-divided  both
    same      state sharded between groups: any schedule, two slots for units, recomputation, other places of gathers and a
              process for each rank to the bit
    bf16      the same in bf16: losses of 5 steps as without sharding between groups, within 1e-3 relative
    layouts   saved under one layout, loaded under another: weights and moments to the bit, the losses that
              follow within 1e-6 relative
    formats   likewise, from and to layouts with other checkpoint formats
"""

import json
import operator
import pathlib
import sys
import tempfile

from compare_runs import FULL, LONG, STRATEGIES, Runner, close, equal, run_check, strategy_settings

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from check_golden import gathered, read_dump  # noqa: E402

MICRO_BATCH, STEPS, SAVED = 2, 5, 3
TOLERANCE = 1e-5
STATE = {"weights": ("w.", "master."), "first moments": ("m.",), "second moments": ("v.",)}


def layout(strategy, ranks, groups=1, outer="no_shard"):
    return [*strategy_settings(strategy), f"cluster.gpus_per_node={ranks}",
            f"ddp.num_distributed_optimizer_instances={groups}", f"ddp.outer_dp_sharding_strategy={outer}",
            f"train.micro_batch_size={MICRO_BATCH}"]


def divided(ranks, groups):
    return layout("optim_grads_params", ranks, groups, outer="optim")


def batch(samples, steps=STEPS):
    return [f"train.global_batch_size={samples}", f"train.train_iters={steps}"]


def with_gradients(runner, *settings):
    """Losses and norms of all steps, and the gradients of the first as all ranks together hold them."""
    with tempfile.TemporaryDirectory() as folder:
        steps = runner.run_plan(*settings, options=[f"--dump-dir={folder}", "--dump=update:g.*"])
        return steps, {name: values for name, (_, values) in read_dump(pathlib.Path(folder)).items()}


def needs(text, words):
    if words not in text:
        sys.exit(f"the plan has no '{words}'")


def compare(name, found, expected):
    close(f"{name}: {len(expected[0])} steps", found[0], expected[0], tolerance=TOLERANCE)
    norms = max(abs(x / y - 1) for (_, x), (_, y) in zip(found[0], expected[0]))
    if norms > TOLERANCE:
        sys.exit(f"{name}: norms differ by {norms:.3e}")
    for parameter, values in expected[1].items():
        most = max(map(abs, values))
        apart = max(map(abs, map(operator.sub, found[1][parameter], values)))
        # Weights of head norms: their fp32 sums over all heads and tokens cancel. On one rank, two of BLIS' kernel sets, which
        # sum in different orders, give gradients that differ by 1.2e-5. Those of decays cancel too: they are a thousandth of others.
        is_of_heads, is_decay = (parameter.endswith(ends) for ends in (("q_layernorm.weight", "k_layernorm.weight"), ("A_log", "dt_bias")))
        if not apart <= (4 if is_decay else 2 if is_of_heads else 1) * TOLERANCE * most:
            sys.exit(f"{name}: the gradient of {parameter} differs by {apart:.3e} of {most:.3e}")
    print(f"{name}: {len(expected[1])} gradients within {TOLERANCE:.0e}")


def check_one_rank(runner, settings=()):
    for ranks in (4, 8):
        for microbatches in (1, 3):
            samples = batch(MICRO_BATCH * ranks * microbatches)
            expected = with_gradients(runner, *samples, *layout("no_shard", 1))
            for strategy in STRATEGIES:
                found = with_gradients(runner, *samples, *layout(strategy, ranks, groups=2), *settings)
                needs(runner.plan_text(), f"mesh {{ dp_outer = 2 dp = {ranks // 2} }}")
                if strategy != "no_shard":
                    needs(runner.plan_text(), "group dp_outer")
                compare(f"{strategy} in 2 groups of {ranks // 2}, {microbatches} microbatches", found, expected)


def check_average(runner):
    check_one_rank(runner, ["ddp.average_in_collective=true"])


def check_divided(runner, settings=()):
    for ranks, groups in ((2, 2), (4, 2), (6, 3), (8, 2)):
        for microbatches in (1, 3):
            samples = batch(MICRO_BATCH * ranks * microbatches)
            expected = with_gradients(runner, *samples, *layout("no_shard", 1))
            found = with_gradients(runner, *samples, *divided(ranks, groups), *settings)
            text = runner.plan_text()
            needs(text, f"mesh {{ dp_outer = {groups} dp = {ranks // groups} }}")
            if ranks > groups:
                needs(text, " over dp state ")
                needs(text, "channel outer group dp_outer stream outer")
            compare(f"{groups} groups of {ranks // groups}, divided, {microbatches} microbatches", found, expected)


def check_average_divided(runner):
    check_divided(runner, ["ddp.average_in_collective=true"])


def check_same(runner):
    """Whatever moves ops or buffers leaves the results alone."""
    for microbatches in runner.with_kernels((1, 2, 3)):
        name = f"{microbatches} microbatches"
        settings = [*batch(MICRO_BATCH * 4 * microbatches), *divided(4, 2), "validation.eval_interval=2", "validation.eval_iters=2"]
        expected = runner.run_plan(*settings)
        for seed in (1, 2, 3):
            equal(f"{name}, seed {seed}", expected, runner.run_plan(*settings, options=[f"--seed-schedule={seed}"]))
        equal(f"{name}, not overlapped", expected, runner.run_plan(*settings, compile_options=["--disable-pass=overlap"]))
        equal(f"{name}, two slots", expected, runner.run_plan(*settings, "ddp.fsdp_double_buffer=true"))
        equal(f"{name}, all layers computed again", expected, runner.run_plan(*settings, *FULL))
        selective = ["model.recompute_granularity=selective", "model.recompute_modules=[core_attn, layernorm, mlp]"]
        equal(f"{name}, parts of layers computed again", expected, runner.run_plan(*settings, *selective))
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
        equal(f"{name}, a process for each rank", expected, [(each["loss"], each["grad_norm"]) for each in records])


def check_bf16(runner):
    for microbatches in runner.in_turn((1, 3)):
        for wire in ("true", "false"):
            name = f"bf16, {microbatches} microbatches, grad_reduce_in_fp32 = {wire}"
            settings = [*batch(MICRO_BATCH * 4 * microbatches), "mixed_precision=bf16_mixed", f"ddp.grad_reduce_in_fp32={wire}"]
            expected = runner.run_plan(*settings, *layout("optim_grads_params", 4))
            found = runner.run_plan(*settings, *divided(4, 2))
            equal(f"{name}, seed 1", found, runner.run_plan(*settings, *divided(4, 2), options=["--seed-schedule=1"]))
            close(name, found, expected, tolerance=1e-3)


def with_state(runner, settings):
    """Losses and norms of the steps after a load, and weights and moments as it leaves them, on all ranks together."""
    plan = pathlib.Path(runner.folder.name) / "job.plan"
    runner.call(["shardc", "dump-plan", runner.recipe, "-o", plan, *runner.arguments(settings)])
    prefixes = [prefix for each in STATE.values() for prefix in each if f"cell @{prefix}" in runner.plan_text()]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        records = runner.metrics(["shardc-run", plan, f"--dump-dir={folder}", f"--dump-step={SAVED + 1}",
                                  *(f"--dump=micro:@{prefix}*" for prefix in prefixes)])
        state = gathered(folder, json.loads((folder / "index.json").read_text()), key_of_state)
    return [(record["loss"], record["grad_norm"]) for record in records], state


def key_of_state(entry, part):
    prefix = entry["name"].removeprefix("@").split(".")[0] + "."
    return next(what for what, each in STATE.items() if prefix in each), part["param"]


def under(strategy, ranks, groups=1, outer="no_shard"):
    fsdp = strategy_settings("optim_grads_params")[:2]
    return [*layout(strategy, ranks, groups, outer), *fsdp, f"ddp.data_parallel_sharding_strategy={strategy}"]


def check_layouts(runner):
    layouts = {"one rank": under("optim_grads_params", 1), "FSDP on 3": under("optim_grads_params", 3),
               "2 groups of 2": under("optim_grads_params", 4, groups=2), "3 groups of 2": under("optim", 6, groups=3),
               "2 groups of 3, replicated": under("no_shard", 6, groups=2),
               "2 groups of 2, divided": under("optim_grads_params", 4, groups=2, outer="optim"),
               "3 groups of 2, divided": under("optim_grads_params", 6, groups=3, outer="optim"),
               "3 groups of 1, divided": under("optim_grads_params", 3, groups=3, outer="optim")}
    compare_layouts(runner, layouts, ("one rank", "FSDP on 3", "2 groups of 2", "3 groups of 2", "3 groups of 2, divided"))


def check_formats(runner):
    fsdp2 = ["dist.use_torch_fsdp2=true", "cluster.gpus_per_node=3", f"train.micro_batch_size={MICRO_BATCH}"]
    layouts = {"2 groups of 2, divided": under("optim_grads_params", 4, groups=2, outer="optim"),
               "3 groups of 2, divided": under("optim_grads_params", 6, groups=3, outer="optim"),
               "torch_dist": [*layout("optim", 3), "checkpoint.ckpt_format=torch_dist"],
               "torch_dist of 2 groups": [*layout("optim", 4, groups=2), "checkpoint.ckpt_format=torch_dist"],
               "torch_dist of FSDP2": [*fsdp2, "checkpoint.ckpt_format=torch_dist"],
               "torch_dcp of FSDP2": [*fsdp2, "checkpoint.ckpt_format=torch_dcp"]}
    in_pieces = {"3 groups of 2, divided": ["checkpoint.async_save=true", "checkpoint.snapshot_limit=4096"]}
    sources = ("3 groups of 2, divided", "torch_dist", "torch_dcp of FSDP2")
    compare_layouts(runner, layouts, sources, in_pieces, ["checkpoint.convert_on_load=true"])


def compare_layouts(runner, layouts, sources, saving={}, loading=()):
    """Each layout loads the saves of the sources, which may have settings for it; a third of the layouts unless
    SHARDC_LONG=1."""
    samples = batch(24, steps=SAVED + 2)
    for source in runner.in_turn(sources):
        saved = [*samples, *layouts[source]]
        with tempfile.TemporaryDirectory() as folder:
            whole = runner.run(*saved)
            runner.run(*saved, f'checkpoint.save="{folder}/c"', f"train.exit_interval={SAVED}", *saving.get(source, []))
            expected, count = None, 0
            for index, (target, loaded) in enumerate(layouts.items()):
                if not LONG and source != target and (index + sources.index(source)) % 3 != 0:
                    continue
                count += 1
                rest, state = with_state(runner, [*samples, *loaded, f'checkpoint.load="{folder}/c"', *loading])
                expected = expected or state
                if state != expected:
                    sys.exit(f"{source} to {target}: state differs")
                (equal if source == target else close)(f"{source} to {target}", whole[SAVED:], rest)
            print(f"{source}: {sum(map(len, expected.values()))} elements of state are the same under {count} layouts")


CHECKS = {"one-rank": check_one_rank, "average": check_average, "divided": check_divided,
          "average-divided": check_average_divided, "same": check_same, "bf16": check_bf16, "layouts": check_layouts,
          "formats": check_formats}


if __name__ == "__main__":
    run_check(CHECKS)
