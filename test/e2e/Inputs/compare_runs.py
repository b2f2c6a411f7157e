#!/usr/bin/env python3
"""Trains small recipes in several configurations and compares the losses. Needs only Python.

    compare_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    strategies    four strategies, one microbatch: to the bit
    microbatches  several microbatches: to the bit within {no_shard, optim} and within {optim_grads,
                  optim_grads_params}, whose orders of addition differ; 1e-6 relative across, 10 steps
    sizes         data-parallel sizes 1, 2, 3, 4 at equal global batch: 1e-6 relative, 10 steps
    recompute     none, selective, full, by layer: to the bit
    offload       activations on the host until the backward pass, or not: to the bit
    schedules     the pool's order and seeded random orders under poisoned memory: to the bit
    average       sums scaled before and averages in the collective: 1e-6 relative, 10 steps
    plan-file     a compiled plan in an empty folder and the recipe itself: to the bit
    fusions       each fusion left out, and all: 1e-5 relative, 10 steps
    moves         passes left out that move ops and keep their results: to the bit
    rows          rows of the embedding moved instead of the table, on 2, 3 and 4 ranks with one and three microbatches:
                  the first loss to the bit, since lookups are exact; 1e-3 relative, 10 steps; any schedule to the bit
    norm          squares of gradients summed where shards are formed, and by themselves, with one and three microbatches:
                  losses to the bit, 1e-12 relative in the norm; any schedule to the bit
    fsdp2         PyTorch's FSDP2 on 1 to 5 ranks, weights freed and kept, one and three microbatches, and one rank
                  without it: losses of 5 steps and step 1's gradient of each parameter within 1e-5 relative; freed and
                  kept, any schedule, and a process for each rank to the bit
    tied          the head's part of a tied embedding's gradient reduced by itself, on 2 and 3 ranks likewise
"""

import argparse
import functools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import zlib

TESTS = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(TESTS / "e2e" / "golden"), str(TESTS / "tools")]
import blas_kernels  # noqa: E402
import check_golden  # noqa: E402

STRATEGIES = ["no_shard", "optim", "optim_grads", "optim_grads_params"]
FUSIONS = ["fuse-bias", "fuse-qkv-rope", "fuse-residual-norm", "fuse-loss-head", "fuse-qkv-attention", "fuse-epilogues"]
COMPARED_STEPS = 10
KINDS = 3  # of kernels, in checks that have no cases of their own
LONG = os.environ.get("SHARDC_LONG") == "1"  # all is tried, also by the scripts beside this one
FULL = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]


def strategy_settings(strategy):
    if strategy == "no_shard":
        return []
    if strategy == "optim":
        return ["ddp.use_distributed_optimizer=true"]
    return [
        "dist.use_megatron_fsdp=true",
        "ddp.use_megatron_fsdp=true",
        f"ddp.data_parallel_sharding_strategy={strategy}",
    ]


def fsdp2_settings(frees, ranks):
    return [
        "dist.use_torch_fsdp2=true",
        f"dist.torch_fsdp2_reshard_after_forward={str(frees).lower()}",
        f"cluster.gpus_per_node={ranks}",
    ]


class Runner:
    def __init__(self, recipe, settings):
        self.recipe, self.settings = recipe, settings
        self.folder = tempfile.TemporaryDirectory()

    def in_turn(self, cases, with_all=False):
        """The cases, each of which runs, with all programs that it starts, with another kind of BLIS' kernels than the one
        before: results are compared with others of the same kernels. The script's arguments choose the first kind."""
        kinds = blas_kernels.kinds()
        first = zlib.crc32(" ".join(pathlib.PurePath(word).name for word in sys.argv[1:]).encode())
        given = {name: os.environ[name] for name in [blas_kernels.VARIABLE] if name in os.environ}
        for i, case in enumerate(cases):
            for kernels in kinds if with_all else [kinds[(first + i) % len(kinds)]]:
                os.environ.update({**given, **kernels})
                yield case
                os.environ.pop(blas_kernels.VARIABLE, None)
                os.environ.update(given)

    def with_kernels(self, cases):
        """The same; where SHARDC_LONG=1, each case with all kinds."""
        return self.in_turn(cases, with_all=LONG)

    def call(self, command, cwd=None):
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def arguments(self, settings):
        return [f"--set={setting}" for setting in [*self.settings, *settings]]

    def metrics(self, command, cwd=None):
        path = pathlib.Path(self.folder.name) / "metrics.jsonl"
        path.unlink(missing_ok=True)
        self.call([*command, f"--metrics={path}"], cwd)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        self.records = [record for record in records if "loss" in record]
        return self.records

    def told(self, names):
        """What the last run reported of these names in each step."""
        return [{name: record[name] for name in sorted(names & set(record))} for record in self.records]

    def run(self, *settings):
        """Loss and gradient norm of each step."""
        records = self.metrics(["shardc", "run", self.recipe, *self.arguments(settings)])
        return [(record["loss"], record["grad_norm"]) for record in records]

    def run_and_look(self, *settings):
        """Loss and gradient norm of each step, and the gradients of step 1: name -> (shape, values)."""
        with tempfile.TemporaryDirectory() as folder:
            dump = [f"--dump-dir={folder}", "--dump-step=1", "--dump=update:g.*"]
            return self.run_plan(*settings, options=dump), check_golden.read_dump(pathlib.Path(folder))

    def plan_text(self):
        """Of the plan that ran last."""
        return (pathlib.Path(self.folder.name) / "job.plan").read_text()

    def run_plan(self, *settings, options=(), compile_options=()):
        plan = pathlib.Path(self.folder.name) / "job.plan"
        self.call(["shardc", "dump-plan", self.recipe, "-o", plan, *self.arguments(settings), *compile_options])
        with tempfile.TemporaryDirectory() as empty:
            records = self.metrics(["shardc-run", plan, *options], cwd=empty)
        return [(record["loss"], record["grad_norm"]) for record in records]


def equal(name, a, b):
    if a != b:
        step = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        sys.exit(f"{name}: not equal at step {step + 1}: {a[step:step + 1]} and {b[step:step + 1]}")
    print(f"{name}: {len(a)} steps equal to the bit")


def compare_orders(runner, settings, recompute):
    """Steps are the same to the bit in any order of ops, with each kind of recomputation, and by processes; with several kinds
    of BLIS' kernels in turn."""
    def by_processes():
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
        return [(each["loss"], each["grad_norm"]) for each in records]

    ways = [(f"seed {seed}", functools.partial(runner.run_plan, *settings, options=[f"--seed-schedule={seed}"]))
            for seed in ((1, 2) if LONG else (1,))]
    ways += [(f"recomputation {name}", functools.partial(runner.run_plan, *settings, *again))
             for name, again in recompute.items() if again]
    ways.append(("a process for each rank", by_processes))
    for some in runner.with_kernels([ways[kind::KINDS] for kind in range(KINDS)]):
        expected = runner.run_plan(*settings) if some else None
        for name, run in some:
            equal(name, expected, run())


def close(name, a, b, tolerance=1e-6):
    pairs = list(zip(a, b))[:COMPARED_STEPS]
    worst = max(abs(x[0] - y[0]) / abs(y[0]) for x, y in pairs)
    if len(a) != len(b) or worst > tolerance:
        sys.exit(f"{name}: losses differ by {worst:.3e}, {tolerance:.0e} is the limit")
    print(f"{name}: losses within {tolerance:.0e}")


def check_strategies(runner):
    for _ in runner.with_kernels(range(KINDS)):
        runs = {s: runner.run(*strategy_settings(s)) for s in STRATEGIES}
        for s in STRATEGIES[1:]:
            equal(f"no_shard and {s}", runs["no_shard"], runs[s])


def check_microbatches(runner):
    runs = {s: runner.run(*strategy_settings(s)) for s in STRATEGIES}
    equal("no_shard and optim", runs["no_shard"], runs["optim"])
    equal("optim_grads and optim_grads_params", runs["optim_grads"], runs["optim_grads_params"])
    close("no_shard and optim_grads_params", runs["no_shard"], runs["optim_grads_params"])


def check_sizes(runner):
    fsdp = strategy_settings("optim_grads_params")
    one = runner.run("cluster.gpus_per_node=1", *fsdp)
    for size in (2, 3, 4):
        close(f"1 rank and {size} ranks", one, runner.run(f"cluster.gpus_per_node={size}", *fsdp))


def check_recompute(runner):
    fsdp = strategy_settings("optim_grads_params")
    ways = {"full": FULL, "one layer": [setting.replace("uniform", "block") for setting in FULL]}
    for modules in ("[core_attn]", "[layernorm]", "[mlp]", "[core_attn, layernorm, mlp]"):
        ways[f"selective {modules}"] = ["model.recompute_granularity=selective", f"model.recompute_modules={modules}"]
    auto = "model.recompute_granularity=auto"
    ways["one layer's modules, one whole"] = [auto, 'model.recompute_layers=["core_attn+layernorm", "full"]']
    ways["what fits"] = [auto, "cluster.memory=2250KiB"]
    for _ in runner.with_kernels(range(KINDS)):
        none = runner.run(*fsdp)
        for way, settings in ways.items():
            equal(f"none and {way}", none, runner.run(*fsdp, *settings))


def check_offload(runner):
    fine = ["model.fine_grained_activation_offloading=true", "model.min_offloaded_tensor_size=1"]
    modules = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "mlp_act", "expert_fc1", "moe_act")
    all_modules = [*fine, f"model.offload_modules=[{', '.join(modules)}]"]
    ways = {
        "modules, the rest recomputed": [*FULL, *all_modules],
        "inputs, the rest recomputed": [*FULL, *fine, "model.offload_modules=[attn_norm]"],
        "modules": all_modules,
        "the first layer": ["model.cpu_offloading=true", "model.cpu_offloading_num_layers=1",
                            "model.min_offloaded_tensor_size=1"],
        "some modules, copies awaited at once": [*all_modules, "model.activation_offload_fraction=0.3",
                                                 "model.fine_grained_offloading_max_inflight_offloads=0"],
    }
    draw = random.Random(" ".join(sys.argv[1:]))
    for _ in runner.with_kernels(range(1)):
        none = runner.run_plan()
        for way in ways if LONG else draw.sample(list(ways), 2):
            settings = ways[way]
            found = runner.run_plan(*settings, options=["--seed-schedule=1"] if way == "modules" else [])
            if " = to_host " not in runner.plan_text():
                sys.exit(f"{way}: nothing is moved")
            equal(f"none and {way}", none, found)


def check_schedules(runner):
    fsdp = strategy_settings("optim_grads_params")
    for kind in runner.with_kernels(range(KINDS)):
        pool = runner.run_plan(*fsdp)
        for seed in range(2 * kind + 1, 2 * kind + 3):
            equal(f"pool and seed {seed}", pool, runner.run_plan(*fsdp, options=[f"--seed-schedule={seed}"]))


def check_average(runner):
    for strategy in ("no_shard", "optim"):
        settings = strategy_settings(strategy)
        summed = runner.run(*settings, "ddp.average_in_collective=false")
        close(f"sum and average, {strategy}", summed, runner.run(*settings, "ddp.average_in_collective=true"))


def check_moves(runner):
    fsdp = strategy_settings("optim_grads_params")
    for _ in runner.with_kernels(range(KINDS)):
        all_passes = runner.run_plan(*fsdp)
        for name in ("reemit-activations", "overlap"):
            equal(f"with and without {name}", all_passes,
                  runner.run_plan(*fsdp, compile_options=[f"--disable-pass={name}"]))


def check_plan_file(runner):
    for strategy in runner.with_kernels(STRATEGIES):
        settings = strategy_settings(strategy)
        equal(f"recipe and plan, {strategy}", runner.run(*settings), runner.run_plan(*settings))


def check_fusions(runner):
    fsdp = strategy_settings("optim_grads_params")
    fused = runner.run_plan(*fsdp)
    for left_out in (*([fusion] for fusion in FUSIONS), FUSIONS):
        options = [f"--disable-pass={fusion}" for fusion in left_out]
        close(f"all fusions and without {', '.join(left_out)}", fused, runner.run_plan(*fsdp, compile_options=options),
              tolerance=1e-5)


def check_summed_otherwise(runner, ranks_of, op, way, other):
    """Plans compiled in two ways, one of which has `op`. They must be equal except for the order in which gradients
    are added."""
    for ranks in runner.with_kernels(ranks_of):
        for microbatches in (1, 3):
            name = f"{ranks} ranks, {microbatches} microbatches"
            settings = [*strategy_settings("optim_grads_params"), f"cluster.gpus_per_node={ranks}",
                        f"train.global_batch_size={2 * ranks * microbatches}"]
            found = runner.run_plan(*settings, compile_options=way)
            if op not in runner.plan_text():
                sys.exit(f"{name}: the plan has no {op}")
            equal(f"{name}, seed 1", found, runner.run_plan(*settings, options=["--seed-schedule=1"], compile_options=way))
            expected = runner.run_plan(*settings, compile_options=other)
            if op in runner.plan_text():
                sys.exit(f"{name}: the other plan has {op} too")
            equal(f"{name}, first loss", [found[0][0]], [expected[0][0]])
            close(name, found, expected, tolerance=1e-3)
            norms = abs(found[0][1] - expected[0][1]) / expected[0][1]
            if norms > 1e-3:
                sys.exit(f"{name}: the first gradient norms differ by {norms:.3e}")


def check_norm(runner):
    without = ["--disable-pass=fuse-norm-into-exchange"]
    for strategy in runner.with_kernels(("optim", "optim_grads_params")):
        for microbatches in (1, 3):
            name = f"{strategy}, {microbatches} microbatches"
            settings = [*strategy_settings(strategy), "model.deterministic_mode=true", "cluster.gpus_per_node=3",
                        f"train.global_batch_size={6 * microbatches}"]
            found = runner.run_plan(*settings)
            if "sum_squares %ss." not in runner.plan_text():
                sys.exit(f"{name}: no squares are summed where shards are formed")
            equal(f"{name}, seed 1", found, runner.run_plan(*settings, options=["--seed-schedule=1"]))
            expected = runner.run_plan(*settings, compile_options=without)
            if "%ss." in runner.plan_text():
                sys.exit(f"{name}: the other plan sums squares where shards are formed too")
            equal(f"{name}, losses", [loss for loss, _ in found], [loss for loss, _ in expected])
            worst = max(abs(x / y - 1) for (_, x), (_, y) in zip(found, expected))
            if worst > 1e-12:
                sys.exit(f"{name}: norms differ by {worst:.3e}")


def check_fsdp2(runner):
    for ranks in runner.with_kernels(range(1, 6)):
        for microbatches in (1, 3):
            name = f"{ranks} ranks, {microbatches} microbatches"
            sizes = [f"train.global_batch_size={2 * ranks * microbatches}", "train.train_iters=5"]
            alone, gradients = runner.run_and_look(*sizes, "cluster.gpus_per_node=1")
            freed = [*sizes, *fsdp2_settings(True, ranks)]
            found, sharded = runner.run_and_look(*freed)
            if len(found) != 5:
                sys.exit(f"{name}: {len(found)} steps")
            close(name, found, alone, tolerance=1e-5)
            comparison = check_golden.Comparison()
            limits = {"gradient": 1e-5, "gradient_of_model": 1e-8}
            check_golden.compare_gradients(gradients, sharded, limits, comparison)
            if comparison.report() != 0:
                sys.exit(f"{name}: gradients of {len(comparison.failures)} parameters differ")
            equal(f"{name}, seed 1", found, runner.run_plan(*freed, options=["--seed-schedule=1"]))
            kept, again = runner.run_and_look(*sizes, *fsdp2_settings(False, ranks))
            equal(f"{name}, kept", found, kept)
            if sharded != again:
                sys.exit(f"{name}: gradients differ where weights are kept")
    found = runner.run(*fsdp2_settings(True, 3), "train.global_batch_size=6")
    processes = runner.metrics(["shardc", "run", runner.recipe, "--processes",
                                *runner.arguments([*fsdp2_settings(True, 3), "train.global_batch_size=6"])])
    equal("a process for each rank", found, [(record["loss"], record["grad_norm"]) for record in processes])


def check_rows(runner):
    check_summed_otherwise(runner, (2, 3, 4), "embedding_shard_bwd", ["--enable-pass=exchange-embedding-rows"], [])


def check_tied(runner):
    check_summed_otherwise(runner, (2, 3), "embedding_shard_bwd", [], ["--disable-pass=reduce-tied-head"])


CHECKS = {
    "strategies": check_strategies,
    "microbatches": check_microbatches,
    "sizes": check_sizes,
    "recompute": check_recompute,
    "offload": check_offload,
    "schedules": check_schedules,
    "average": check_average,
    "plan-file": check_plan_file,
    "fusions": check_fusions,
    "moves": check_moves,
    "rows": check_rows,
    "tied": check_tied,
    "fsdp2": check_fsdp2,
    "norm": check_norm,
}


def run_check(checks):
    """What the command line names: CHECK RECIPE [--set path=value ...]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=checks)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    checks[options.check](Runner(options.recipe, options.set))


if __name__ == "__main__":
    run_check(CHECKS)
