#!/usr/bin/env python3
"""The proofs that need many small plans. With SHARDC_LONG=1 they run in full, else a thousandth or so.

    proof.py plans DIR      writes the plans
    proof.py mutations      verifier and oracle agree on every mutation of every plan (500 each in full)
    proof.py schedules      ten of the plans lose no bit in random schedules (1,000 each in full)
    proof.py touched        a run of each plan touches the bytes that its plan counts, and no others
    proof.py runs           accepted mutations run: losses, norms and saved state as the plan's own, and in another
                            schedule (MUTATIONS=n of each plan, 800 in full; PLANS="optim-3 eval": of these; SEED=n)

The programs are found on PATH. docs/benchmarks/plan-proof.md has what the full runs gave.
"""

import collections
import concurrent.futures
import filecmp
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DEBUG = HERE.parent.parent.parent / "recipes" / "debug"
LONG = os.environ.get("SHARDC_LONG") == "1"
SEED = os.environ.get("SEED", "11")

FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"]
STRATEGIES = {
    "no_shard": [],
    "optim": ["ddp.use_distributed_optimizer=true"],
    "optim_grads": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads"],
    "optim_grads_params": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads_params"],
}
TORCH_FSDP2 = ["dist.use_torch_fsdp2=true", "checkpoint.ckpt_format=torch_dcp"]
TIED = ["model.share_embeddings_and_output_weights=true"]
BF16 = ["mixed_precision=bf16_mixed"]
FULL = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"]
SAVE = ['checkpoint.save="saved"', "checkpoint.async_save=true", "checkpoint.save_interval=1"]
PIECES = [*SAVE, "checkpoint.snapshot_limit=4096"]
SAVE_EACH = ['checkpoint.save="saved"', "checkpoint.save_interval=1"]
EVAL = ["validation.eval_interval=1", "validation.eval_iters=1"]
THREE_MICROBATCHES = ["train.global_batch_size=12"]
ONE_MICROBATCH = ["train.global_batch_size=4"]


def variants():
    """Name, recipe and settings of each plan."""
    for strategy, settings in STRATEGIES.items():
        yield f"{strategy}-1", "llama_tiny", [*settings, *ONE_MICROBATCH]
        yield f"{strategy}-3", "llama_tiny", [*settings, *THREE_MICROBATCHES]
    fsdp = STRATEGIES["optim_grads_params"]
    for count, settings in (("1", ONE_MICROBATCH), ("3", THREE_MICROBATCHES)):
        yield f"bf16-{count}", "llama_tiny", [*fsdp, *BF16, *settings]
        for strategy in ("no_shard", "optim", "optim_grads_params"):
            yield f"gpt2-{strategy}-{count}", "gpt2_tiny", [*STRATEGIES[strategy], *settings]
    yield "recompute", "llama_tiny", [*fsdp, *FULL]
    yield "eval", "llama_tiny", [*fsdp, *EVAL]
    yield "three-ranks", "llama_tiny", [*fsdp, "cluster.gpus_per_node=3", "train.global_batch_size=12"]
    yield "slots", "llama_tiny", [*fsdp, "ddp.fsdp_double_buffer=true"]
    yield "exchanged", "llama_tiny", [*fsdp, *THREE_MICROBATCHES, "model.deterministic_mode=true"]
    yield "background", "llama_tiny", [*fsdp, *SAVE]
    yield "background-pieces", "llama_tiny", [*STRATEGIES["optim"], *PIECES]
    yield "torch_fsdp2", "llama_tiny", [*TORCH_FSDP2, *THREE_MICROBATCHES]
    yield "tied", "llama_tiny", [*fsdp, *TIED, *THREE_MICROBATCHES]
    yield "optim-eval", "llama_tiny", [*STRATEGIES["optim"], *EVAL]


SCHEDULED = ["no_shard-3", "optim-3", "optim_grads-3", "optim_grads_params-3", "bf16-3", "gpt2-optim_grads_params-3",
             "recompute", "eval", "three-ranks", "slots"]


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def write_plans(folder, wanted=None, more=()):
    paths = []
    for name, recipe, settings in variants():
        if wanted is None or name in wanted:
            path = folder / f"{name}.plan"
            overlay = ["--overlay", HERE / "small_llama.recipe"]
            run(["shardc", "dump-plan", DEBUG / f"{recipe}.recipe", *overlay, "-o", path,
                 *(f"--set={setting}" for setting in [*more, *settings])])
            paths.append(path)
    return paths


def mutations(folder):
    plans = write_plans(folder)
    count, orders = (500, 200) if LONG else (3, 4)
    print(run(["plan-oracle", "--mutations", count, "--orders", orders, "--seed", 7, *plans]), end="")


def losses(plan, options):
    """What the run logs, without its times."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics.jsonl"
        run(["shardc-run", plan, f"--metrics={metrics}", *options], cwd=folder)
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]


def schedules(folder):
    count = 1000 if LONG else 1
    plans = write_plans(folder, SCHEDULED)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for plan in plans:
            expected = losses(plan, [])
            seeds = range(1, count + 1)
            for seed, found in zip(seeds, pool.map(lambda s: losses(plan, [f"--seed-schedule={s}"]), seeds)):
                if found != expected or len(found) == 0:
                    sys.exit(f"{plan.stem}, schedule {seed}: {found}, without a schedule {expected}")
            print(f"{plan.stem}: {count} schedules, {len(expected)} steps equal to the bit", flush=True)


# Kinds of mutations that docs/plan.md leaves to the compiler: which operand an op takes, how many steps there are.
LEFT_TO_THE_COMPILER = {"change-operand": "operands", "change-out": "operands", "take-part": "operands",
                        "move-tie": "operands", "change-every": "the job"}
NOT_OF_THIS_RUNTIME = re.compile("the plan has [0-9]+ roles; this runtime executes plans of one")
OTHER_STEPS_THAN_THE_JOB = re.compile("the program has [0-9]+ steps; train.train_iters is [0-9]+|"
                                      "evaluates every [0-9]+ steps; validation.eval_interval is [0-9]+")


def outcome(plan, options, folder):
    """What the run logs without its times, or how it ended; and the folder of its checkpoints."""
    folder.mkdir(parents=True)
    metrics = folder / "metrics.jsonl"
    command = ["shardc-run", plan, f"--metrics={metrics}", *options]
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=folder, timeout=300)
    except subprocess.TimeoutExpired:
        return "does not end", None
    if done.returncode != 0:
        return f"status {done.returncode}: {done.stderr[-300:]}", None
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record], folder / "saved"


def same_state(first, second):
    """True if both folders hold the same checkpoints, tensor by tensor."""
    steps = [sorted(path.name for path in folder.glob("iter_*")) for folder in (first, second)]
    if steps[0] != steps[1]:
        return False
    for step in steps[0]:
        data = [sorted(path.name for path in (folder / step).glob("*.distcp")) for folder in (first, second)]
        names = [*data[0], ".metadata"]
        equal = filecmp.cmpfiles(first / step, second / step, names, shallow=False)[0]
        if data[0] == data[1] and len(equal) == len(names):
            continue  # to the bit
        if subprocess.run(["shardc", "ckpt", "diff", "--tensors-only", first / step, second / step],
                          capture_output=True).returncode != 0:
            return False
    return True


def judge(mutant, number, expected, folder):
    """How the accepted mutant's runs differ from those of its plan, or None."""
    found = outcome(mutant, [], folder / f"run{number}")
    again = outcome(mutant, [f"--seed-schedule={number + 1}"], folder / f"again{number}")
    different = None
    if not isinstance(found[0], list):
        different = found[0]
    elif again[0] != found[0] or not same_state(found[1], again[1]):
        different = f"another schedule gives {again[0]} and not {found[0]}, or saves another state"
    elif found[0] != expected[0]:
        different = f"losses {found[0]} and not {expected[0]}"
    elif not same_state(found[1], expected[1]):
        different = "another state is saved"
    for name in (f"run{number}", f"again{number}"):
        shutil.rmtree(folder / name)
    return different


def run_accepted(plan, folder, count, pool):
    """Counts of mutations and of those that are accepted, and how each accepted one differs that does."""
    accepted = folder / "accepted"
    accepted.mkdir(parents=True)
    table = run(["plan-oracle", "--verify-only", "--mutations", count, "--seed", SEED, "--accepted", accepted, plan])
    made = int(re.search("^([0-9]+) mutations$", table, re.MULTILINE)[1])
    expected = outcome(plan, [], folder / "own")
    if not isinstance(expected[0], list) or not expected[0] or not list(expected[1].glob("iter_*")):
        sys.exit(f"{plan.stem}: {expected[0]}")
    listed = accepted / "accepted.tsv"
    mutants = [line.split("\t", 1) for line in listed.read_text().splitlines()] if listed.exists() else []
    found = pool.map(lambda i: judge(accepted / mutants[i][0], i, expected, folder), range(len(mutants)))
    return made, len(mutants), [(what, how) for (_, what), how in zip(mutants, found) if how]


def reason_for(what, how):
    """Why an accepted mutation may differ, or None."""
    if NOT_OF_THIS_RUNTIME.search(how):
        return "several roles, not run"
    kinds = re.findall(r"\[([a-z-]+)\]", what)
    if "change-every" in kinds and OTHER_STEPS_THAN_THE_JOB.search(how):
        return LEFT_TO_THE_COMPILER["change-every"]
    if how.startswith(("losses", "another state")):
        return next((LEFT_TO_THE_COMPILER[kind] for kind in kinds if kind in LEFT_TO_THE_COMPILER), None)
    return None


def runs(folder):
    count = int(os.environ.get("MUTATIONS", 800 if LONG else 2))
    made = accepted = 0
    reasons, failures = collections.Counter(), []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for plan in write_plans(folder, os.environ.get("PLANS", "").split() or None, SAVE_EACH):
            counts = run_accepted(plan, folder / plan.stem, count, pool)
            made, accepted = made + counts[0], accepted + counts[1]
            for what, how in counts[2]:
                reason = reason_for(what, how)
                if reason:
                    reasons[reason] += 1
                else:
                    failures.append(f"{plan.stem}: {what}: {how}")
                    print(failures[-1], flush=True)
            shutil.rmtree(folder / plan.stem)
            print(f"{plan.stem}: {counts[0]} mutations, {counts[1]} accepted, {len(counts[2])} differ", flush=True)
    listed = ", ".join(f"{reason}: {number}" for reason, number in sorted(reasons.items()))
    print(f"{made} mutations, {accepted} accepted; {sum(reasons.values())} differ for a reason ({listed or 'none'}), "
          f"{len(failures)} for none")
    if failures:
        sys.exit(1)


def touched(folder):
    # Snapshots are made for saves, and these runs save nothing.
    names = [name for name, _, _ in variants() if not name.startswith("background")]
    print(run(["touched-memory", *write_plans(folder, names)]), end="")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "plans":
        return print("\n".join(map(str, write_plans(pathlib.Path(sys.argv[2])))))
    checks = {"mutations": mutations, "schedules": schedules, "touched": touched, "runs": runs}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        checks[sys.argv[1]](pathlib.Path(folder))


if __name__ == "__main__":
    main()
