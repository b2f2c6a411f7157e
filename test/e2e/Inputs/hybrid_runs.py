#!/usr/bin/env python3
"""Trains small recipes with state sharded inside groups of ranks and replicated between them. Needs only Python.

    hybrid_runs.py CHECK RECIPE [--set path=value ...]

CHECK is what has to agree:
    one-rank  2 groups of 2 and of 4 ranks, every strategy inside, one and three microbatches, and one rank:
              losses of 5 steps, and gradients of the first, within 1e-5 relative
    average   sums scaled before and averages in the collectives: likewise
    layouts   saved under one layout, loaded under another: weights and moments to the bit, the losses that
              follow within 1e-6 relative
"""

import json
import pathlib
import sys
import tempfile

from compare_runs import STRATEGIES, Runner, close, equal, run_check, strategy_settings

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
from check_golden import read_dump, unpack  # noqa: E402

MICRO_BATCH, STEPS, SAVED = 2, 5, 3
TOLERANCE = 1e-5
STATE = {"weights": ("w.", "master."), "first moments": ("m.",), "second moments": ("v.",)}


def layout(strategy, ranks, groups=1):
    return [*strategy_settings(strategy), f"cluster.gpus_per_node={ranks}",
            f"ddp.num_distributed_optimizer_instances={groups}", f"train.micro_batch_size={MICRO_BATCH}"]


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
    close(f"{name}: 5 steps", found[0], expected[0], tolerance=TOLERANCE)
    norms = max(abs(x / y - 1) for (_, x), (_, y) in zip(found[0], expected[0]))
    if norms > TOLERANCE:
        sys.exit(f"{name}: norms differ by {norms:.3e}")
    for parameter, values in expected[1].items():
        most = max(map(abs, values))
        apart = max(abs(x - y) for x, y in zip(found[1][parameter], values))
        if not apart <= TOLERANCE * most:
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


def with_state(runner, settings):
    """Losses and norms of the steps after a load, and weights and moments as it leaves them, on all ranks together."""
    plan = pathlib.Path(runner.folder.name) / "job.plan"
    runner.call(["shardc", "dump-plan", runner.recipe, "-o", plan, *runner.arguments(settings)])
    prefixes = [prefix for each in STATE.values() for prefix in each if f"cell @{prefix}" in runner.plan_text()]
    state = {}
    with tempfile.TemporaryDirectory() as folder:
        records = runner.metrics(["shardc-run", plan, f"--dump-dir={folder}", f"--dump-step={SAVED + 1}",
                                  *(f"--dump=micro:@{prefix}*" for prefix in prefixes)])
        index = json.loads((pathlib.Path(folder) / "index.json").read_text())
        for entry in index["tensors"]:
            values = unpack((pathlib.Path(folder) / entry["file"]).read_bytes(), entry["dtype"], entry["file"])
            prefix = entry["name"].removeprefix("@").split(".")[0] + "."
            what = next(what for what, each in STATE.items() if prefix in each)
            for part in entry["parts"]:
                for i in range(part["begin"], part["end"]):
                    key = (what, part["param"], part["global_begin"] + i - part["begin"])
                    if state.setdefault(key, values[i]) != values[i]:
                        sys.exit(f"ranks hold different {key}")
    return [(record["loss"], record["grad_norm"]) for record in records], state


def under(strategy, ranks, groups=1):
    fsdp = strategy_settings("optim_grads_params")[:2]
    return [*layout(strategy, ranks, groups), *fsdp, f"ddp.data_parallel_sharding_strategy={strategy}"]


def check_layouts(runner):
    layouts = {"one rank": under("optim_grads_params", 1), "FSDP on 3": under("optim_grads_params", 3),
               "2 groups of 2": under("optim_grads_params", 4, groups=2), "3 groups of 2": under("optim", 6, groups=3),
               "2 groups of 3, replicated": under("no_shard", 6, groups=2)}
    samples = batch(24, steps=SAVED + 2)
    for source in ("one rank", "FSDP on 3", "2 groups of 2", "3 groups of 2"):
        saved = [*samples, *layouts[source]]
        with tempfile.TemporaryDirectory() as folder:
            whole = runner.run(*saved)
            runner.run(*saved, f'checkpoint.save="{folder}/c"', f"train.exit_interval={SAVED}")
            expected = None
            for target, loaded in layouts.items():
                rest, state = with_state(runner, [*samples, *loaded, f'checkpoint.load="{folder}/c"'])
                expected = expected or state
                if state != expected:
                    sys.exit(f"{source} to {target}: state differs")
                (equal if source == target else close)(f"{source} to {target}", whole[SAVED:], rest)
            print(f"{source}: {len(expected)} elements of state are the same under {len(layouts)} layouts")


CHECKS = {"one-rank": check_one_rank, "average": check_average, "layouts": check_layouts}


if __name__ == "__main__":
    run_check(CHECKS)
