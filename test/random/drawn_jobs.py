#!/usr/bin/env python3
"""Draws jobs, and compares their losses with those of one rank; draws saves, and compares what continues from them.

    drawn_jobs.py SHARDC SHARDC-RUN [--cases N] [--resumes N] [--jobs N] [--seconds S] [--seed N] [--out DIR]

A job that the rules accept must start and end, and its losses, norms, evaluations and other figures of three steps must be
those of one rank: within 1e-5 in fp32, as docs/testing.md says of layouts, and within the rounding of narrower types, as
TOLERANCES says. A larger difference is noise only if one rank differs as much from itself when the deviation of its
initial weights changes by 1e-6, or if the same job agrees within 1e-5 in fp32.

A run that is killed, or that ends early, and then continues must do the rest of the steps as the run that nothing stopped:
to the bit in the same layout, in another one within the tolerances. Case i of a seed is always the same: --only I.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "Inputs")]

from beside import call, divide, files_of, print_table, run_plan, write_packs
from drawn_settings import FP8, draw_layout, draw_model, draw_training, one_rank, recipe_of
from plan_text import draw_of

# The largest relative difference of losses and evaluations, and of norms and all other figures. fp32: docs/testing.md.
# bf16 and fp16 round to 2^-9 and 2^-12; sums in another order move a loss by a part of that. fp8: docs/muon.md.
TOLERANCES = {"fp32": (1e-5, 1e-5), "bf16": (2e-3, 2e-2), "fp16": (5e-4, 5e-3), "fp8": (1e-2, 1e-1)}
VERDICTS = ["equal", "noise", "different", "failed", "waits", "crashed", "alone", "broken"]
BAD = {"different", "failed", "waits", "crashed", "broken"}
SKIPPED = {"step", "sample", "lr", "decoupled_lr"}
# Ids of refusals that say that a plan is wrong, and not a recipe.
WRONG_PLANS = ("plan-", "internal")


def drawn(seed, index, data, tries):
    """A job: its name parts, model and training, layout and batch."""
    draw = draw_of(seed, index, tries)
    precision = draw.choice(["fp32"] * 6 + ["bf16", "bf16", "fp16"] + FP8[:draw.choice([1, 2, 3])])
    wide = 16 if precision in FP8 else 0
    if precision in ("fp32", "bf16") and draw.random() < 0.06:
        wide = draw.choice([64, 64, 512])
    job, experts = draw_model(draw, wide)
    draw_training(draw, job, experts, precision, wide, data)
    layout, batch = draw_layout(draw, job, experts)
    return draw, precision, experts, job, layout, batch


def compiled(options, recipe, place, name):
    """Compiles a recipe; returns its plan, or None with status, id and output."""
    file = place / f"{name}.recipe"
    file.write_text(recipe)
    plan = place / f"{name}.plan"
    status, out, expired = call([options.shardc, "dump-plan", file, "-o", plan, "--diag-format=json"], place)
    if status == 0:
        return plan, 0, "", out
    ids = []
    for line in out.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if message.get("severity") == "error":
            ids.append(message.get("id", ""))
    return None, 999 if expired else status, ids[0] if ids else "", out


def figures(lines):
    """The figures of each step and evaluation, by their names."""
    found = {}
    for line in lines:
        kind = "eval" if "eval_loss" in line or "set" in line else "step"
        for name, value in line.items():
            if name not in SKIPPED and isinstance(value, (int, float)) and not isinstance(value, bool):
                found[f"{kind} {line.get('step')} {name}"] = float(value)
    return found


def apart(first, second):
    """The largest differences: of losses, of other figures, and the names of both; infinite if a figure is missing."""
    worst = [(0.0, ""), (0.0, "")]
    one, two = figures(first), figures(second)
    for name in sorted(set(one) | set(two)):
        main = name.split()[2] in ("loss", "eval_loss")
        if name not in one or name not in two:
            gap = math.inf
        else:
            a, b = one[name], two[name]
            scale = max(abs(a), abs(b), 1e-3)
            if "/" in name or "log_odds" in name:  # figures of pairs are differences of log-probabilities
                scale = max([scale] + [abs(value) for key, value in one.items() if "logps" in key or "nll" in key])
            gap = 0.0 if a == b or (a != a and b != b) else abs(a - b) / scale
            gap = math.inf if gap != gap else gap
        if gap > worst[not main][0]:
            worst[not main] = (gap, f"{name} {one.get(name)} {two.get(name)}")
    return worst


def tolerance_of(precision):
    """That of a type, or of a recipe of fp8."""
    return TOLERANCES["fp8" if precision in FP8 else precision]


def within(worst, tolerance):
    return worst[0][0] <= tolerance[0] and worst[1][0] <= tolerance[1]


def run(options, plan, place, name, seed, variables=None):
    folder = place / name
    folder.mkdir(exist_ok=True)
    return run_plan(options.run, plan, folder, options=["--seed-schedule", str(seed)] if seed else [],
                    variables=variables)


def failure(ran):
    """The verdict on a run that did not end well, and why."""
    if ran.expired:
        return "waits", ran.out[-600:]
    if ran.status < 0 or ran.status > 128:
        return "crashed", f"status {ran.status}: {ran.out[-600:]}"
    return "failed", f"status {ran.status}: {ran.error()[1] or ran.out[-600:]}"


def kinds_of(precision, experts, job, layout):
    found = [f"family {job['model']}", f"precision {precision}", f"optimizer {job['optimizer']}"]
    for key, name in (("tensor_model_parallel_size", "tensor"), ("context_parallel_size", "context"),
                      ("pipeline_schedule", "pipeline"), ("expert_model_parallel_size", "experts over ranks"),
                      ("expert_tensor_parallel_size", "parts of experts"), ("tp_comm_overlap", "pieces of rows"),
                      ("freeze", "frozen parts"), ("mtp_num_layers", "further tokens"),
                      ("recompute_granularity", "recomputed"), ("moe_expert_capacity_factor", "capacity")):
        value = {**job, **layout}.get("model." + key, "none")
        if value not in ("none", 1):
            found.append(name + (f" {value}" if key == "pipeline_schedule" else ""))
    strategy = "fsdp2" if "dist.use_torch_fsdp2" in layout else layout.get("ddp.data_parallel_sharding_strategy", "ddp")
    if "ddp.use_distributed_optimizer" in layout:
        strategy = "distopt"
    if "ddp.num_distributed_optimizer_instances" in layout:
        strategy = "hfsdp" if "ddp.outer_dp_sharding_strategy" in layout else "hsdp"
    found.append(f"strategy {strategy}")
    if "peft" in job:
        found.append(f"adapters {job['peft']}" + (f" on {job['peft.quantize']}" if "peft.quantize" in job else ""))
    if "preference.loss" in job:
        found.append(f"preference {job['preference.loss']}")
    if job.get("dataset.kind") == "packed":
        found.append("packs")
    if "optimizer.muon_tp_mode" in layout:
        found.append(f"muon {layout['optimizer.muon_tp_mode']}")
    return found


def accepted(options, index, place, more=None):
    """The first job of a case that the rules accept, compiled; and the ids by which others were refused."""
    refused = {}
    for tries in range(400):
        draw, precision, experts, job, layout, batch = drawn(options.seed, index, options.data, tries)
        job.update(more or {})
        plan, status, rule, out = compiled(options, recipe_of(job, layout, batch), place, "drawn")
        if plan:
            return (draw, precision, experts, job, layout, batch, plan), refused, None
        if status != 1 or not rule or rule.startswith(WRONG_PLANS):
            verdict = "waits" if status == 999 else "failed" if status == 1 else "crashed"
            return (draw, precision, experts, job, layout, batch, None), refused, (verdict, f"compiling: {out[-900:]}")
        refused[rule] = refused.get(rule, 0) + 1
    raise RuntimeError("the rules refuse 400 jobs in a row")


def compare(options, index, place):
    """A job beside one rank."""
    found, refused, wrong = accepted(options, index, place)
    draw, precision, experts, job, layout, batch, plan = found
    result = {"kinds": kinds_of(precision, experts, job, layout), "refused": refused}
    if wrong:
        return {**result, "verdict": wrong[0], "why": wrong[1]}
    ran = run(options, plan, place, "layout", index % 7)
    if ran.status or ran.expired:
        verdict, why = failure(ran)
        return {**result, "verdict": verdict, "why": why}
    alone, _, rule, out = compiled(options, recipe_of(job, layout_free(layout), batch, one_rank(job, layout)), place, "alone")
    if not alone:
        return {**result, "verdict": "alone", "why": f"{rule}: {out[-300:]}"}
    one = run(options, alone, place, "one", 0)
    if one.status or one.expired:
        return {**result, "verdict": "failed", "why": "one rank: " + failure(one)[1]}
    worst = apart(one.lines, ran.lines)
    tolerance = tolerance_of(precision)
    result["apart"] = [worst[0][0], worst[1][0]]
    if within(worst, tolerance):
        return {**result, "verdict": "equal"}
    why = f"{worst[0]} {worst[1]}"
    noise, reason = explained(options, place, precision, job, layout, batch, one, worst)
    return {**result, "verdict": "noise" if noise else "different", "why": f"{why}; {reason}"}


def layout_free(layout):
    """The settings of a layout that say what is trained, and not where."""
    return {name: value for name, value in layout.items() if name in ("ddp.grad_reduce_in_fp32",)}


def explained(options, place, precision, job, layout, batch, one, worst):
    """Whether rounding explains a difference: by one rank with weights that differ by 1e-6, or by the job in fp32."""
    gaps = [0.0, 0.0]
    for number, std in enumerate(("0.02000002", "0.01999998")):
        plan, _, _, _ = compiled(options, recipe_of(job, layout_free(layout), batch, one_rank(job, layout),
                                                    {"model.init_method_std": std}), place, f"probe{number}")
        if plan:
            probe = run(options, plan, place, f"probe{number}", 0)
            if not probe.status:
                gap = apart(one.lines, probe.lines)
                gaps = [max(gaps[at], gap[at][0]) for at in (0, 1)]
    if all(worst[at][0] <= max(4 * gaps[at], TOLERANCES["fp32"][at]) for at in (0, 1)):
        return True, f"weights that differ by 1e-6 move one rank by {gaps}"
    if precision != "fp32":
        plain = {name: value for name, value in job.items() if not name.startswith("mixed_precision")}
        plain = {name: value for name, value in plain.items() if "precision_aware" not in name}
        if plain.get("peft.quantize") == "fp8":
            plain.pop("peft.quantize")
        free = {name: value for name, value in layout.items() if "fp8" not in name and "reduce_in_fp32" not in name}
        plans = [compiled(options, recipe_of(*parts), place, name)[0] for name, parts in (
            ("wide", (plain, free, batch)), ("wide1", (plain, batch, one_rank(job, layout))))]
        if all(plans):
            runs = [run(options, plan, place, f"wide{at}", 0) for at, plan in enumerate(plans)]
            if not any(ran.status for ran in runs):
                gap = apart(runs[1].lines, runs[0].lines)
                # A step that overflows in fp16 is skipped, and the order of sums decides which step does.
                is_skipped = precision == "fp16" and "grad_norm" in worst[1][1] and "None" in worst[1][1]
                is_near = within(gap, TOLERANCES["fp32"]) and (is_skipped or worst[0][0] <= 10 * tolerance_of(precision)[0])
                return is_near, f"in fp32 they differ by {gap}; probes {gaps}"
    return False, f"weights that differ by 1e-6 move one rank by {gaps}"


def continue_run(options, index, place):
    """A run that is stopped and continues, beside one that is not."""
    saves = {"checkpoint.save": '"ck"', "checkpoint.load": '"ck"', "checkpoint.save_interval": 2}
    found, refused, wrong = accepted(options, index, place, {"train.train_iters": 4, "model.mask_padded_vocab": "true",
                                                                **saves})
    draw, precision, experts, job, layout, batch, plan = found
    how = draw.choice(["killed", "ended", "another layout", "another layout"])
    result = {"kinds": [f"{how}: {kind}" if kind.startswith("strategy") else kind
                        for kind in kinds_of(precision, experts, job, layout)] + [how], "refused": refused}
    if wrong:
        return {**result, "verdict": wrong[0], "why": wrong[1]}
    full = run(options, plan, place, "full", 0)
    if full.status or full.expired:
        verdict, why = failure(full)
        return {**result, "verdict": verdict, "why": why}
    rest = [line for line in full.lines if line.get("step", 0) > 2]
    if how == "another layout":
        return {**result, **reshard(options, place, draw, precision, experts, job, layout, batch, rest)}
    part = place / "part"
    part.mkdir()
    if how == "killed":
        fault = f"kill@0:{draw.choice([3, 4])}"
        first = run_plan(options.run, plan, part, variables={"SHARDC_FAULT": fault})
    else:
        early, _, rule, out = compiled(options, recipe_of(job, layout, batch, {"train.exit_interval": 2}), place, "early")
        if not early:
            return {**result, "verdict": "failed", "why": f"exit_interval: {rule} {out[-300:]}"}
        first = run_plan(options.run, early, part)
    if not (part / "ck" / "iter_0000002").exists():
        return {**result, "verdict": "failed", "why": f"{how}: no save of step 2: {first.out[-600:]}"}
    again = run_plan(options.run, plan, part)
    if again.status or again.expired:
        verdict, why = failure(again)
        return {**result, "verdict": verdict, "why": f"{how}: {why}"}
    lines = [line for line in again.lines if line.get("step", 0) > 2]
    if sorted(map(json.dumps, lines)) != sorted(map(json.dumps, rest)):
        return {**result, "verdict": "different", "why": f"{how}: {apart(rest, lines)}; {len(rest)}, {len(lines)} lines"}
    last, own = files_of(place / "full" / "ck" / "iter_0000004"), files_of(part / "ck" / "iter_0000004")
    if last != own:
        status, out, _ = call([options.shardc, "ckpt", "diff", place / "full" / "ck" / "iter_0000004",
                               part / "ck" / "iter_0000004"], place)
        if status:
            return {**result, "verdict": "different", "why": f"{how}: saves: {out[:600]}"}
    return {**result, "verdict": "equal"}


def reshard(options, place, draw, precision, experts, job, layout, batch, rest):
    """Continues in another layout from the save of step 2."""
    refused = {}
    for _ in range(200):
        other, _ = draw_layout(draw, job, experts)
        other["checkpoint.convert_on_load"] = "true"
        if any(key.startswith("model.moe_expert_capacity") or "sinkhorn" in str(value) for key, value in batch.items()):
            other = {name: value for name, value in other.items()
                     if name.split(".")[1] not in ("tensor_model_parallel_size", "context_parallel_size",
                                                   "sequence_parallel", "tp_comm_overlap", "cp_comm_type")}
        plan, status, rule, out = compiled(options, recipe_of(job, layout_free(layout), other, batch), place, "other")
        if plan:
            break
        if status != 1 or not rule or rule.startswith(WRONG_PLANS):
            return {"verdict": "failed", "why": f"compiling another layout: {out[-900:]}"}
        refused[rule] = refused.get(rule, 0) + 1
    else:
        return {"verdict": "alone", "why": f"no other layout: {refused}"}
    part = place / "part"
    shutil.copytree(place / "full" / "ck" / "iter_0000002", part / "ck" / "iter_0000002")
    (part / "ck" / "latest_checkpointed_iteration.txt").write_text("2")
    ran = run_plan(options.run, plan, part)
    if ran.status or ran.expired:
        verdict, why = failure(ran)
        return {"verdict": verdict, "why": f"another layout: {why}"}
    lines = [line for line in ran.lines if line.get("step", 0) > 2]
    worst = apart(rest, lines)
    tolerance = tolerance_of(precision)
    result = {"apart": [worst[0][0], worst[1][0]]}
    if within(worst, tolerance):
        return {**result, "verdict": "equal"}
    alone, _, _, _ = compiled(options, recipe_of(job, layout_free(layout), batch, one_rank(job, layout)), place, "alone")
    one = run(options, alone, place, "one", 0) if alone else None
    if one and not one.status:
        noise, reason = explained(options, place, precision, job, layout, batch, one, worst)
        if noise:
            return {**result, "verdict": "noise", "why": f"{worst}; {reason}"}
    return {**result, "verdict": "different", "why": f"another layout: {worst}"}


def make_packs(options, folder):
    for length in (16, 32):
        for name, packs, seed in ((f"packs{length}", 64, 1), (f"more{length}", 96, 2)):
            write_packs(folder / f"{name}.raw", length, 61, packs, seed)
            status, out, _ = call([options.shardc, "data", "pack", f"{name}.raw", "-o", name, "--pack=keep"], folder)
            if status:
                sys.exit(f"packs were refused: {out}")
    options.data = folder


def case(options, number, place):
    resumes = number >= options.cases if options.only is None else options.resume
    if options.only is not None:
        number = options.only
    else:
        number += options.first - options.cases * resumes
    result = (continue_run if resumes else compare)(options, number + 1_000_000 * resumes, place)
    if result["verdict"] in BAD and options.out:
        name = f"{'resume' if resumes else 'job'}-{result['verdict']}-{number}"
        kept = options.out / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for file in place.glob("*.recipe"):
            shutil.copy(file, kept / file.name)
        (kept / "README").write_text(json.dumps(result, indent=1) + "\n")
    return {"case": number, "part": "resumes" if resumes else "jobs", **result}


def parsed():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    long = os.environ.get("SHARDC_LONG", "0") not in ("", "0")
    options.add_argument("shardc", type=lambda path: Path(path).resolve())
    options.add_argument("run", type=lambda path: Path(path).resolve())
    options.add_argument("--cases", type=int, default=3_000 if long else 3)
    options.add_argument("--resumes", type=int, default=500 if long else 1)
    options.add_argument("--first", type=int, default=0, help="the index of the first job and of the first resume")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--seconds", type=float, default=86_400)
    options.add_argument("--seed", type=int, default=72)
    options.add_argument("--out", type=lambda path: Path(path).resolve(), help="folder of findings and summary.json")
    options.add_argument("--only", type=int, help="runs only this case")
    options.add_argument("--resume", action="store_true", help="with --only: the case continues a run")
    return options.parse_args()


def main():
    options = parsed()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="drawn-jobs-") as folder:
        folder = Path(folder)
        began = time.monotonic()
        make_packs(options, folder)
        places = folder / "work"
        places.mkdir()
        count = options.cases + options.resumes if options.only is None else 1
        # Resumes come in turn with jobs, so that a run that ends early has both.
        order = sorted(range(count), key=lambda number: (number / max(1, options.cases) if number < options.cases else
                                                         (number - options.cases) / max(1, options.resumes)))
        results = divide(count, options.jobs, options.seconds - (time.monotonic() - began),
                         lambda _, number, place: case(options, order[number], place), None, places)
    summary = {"seed": options.seed}
    for part in ("jobs", "resumes"):
        mine = [result for result in results if result.get("part", "jobs") == part]
        if not mine:
            continue
        print(f"{part}:")
        rows, totals = print_table(mine, lambda result: result.get("kinds") or ["none"], VERDICTS)
        summary[part] = {"cases": len(mine), "totals": totals, "kinds": rows}
    refused = {}
    for result in results:
        for rule, count in result.get("refused", {}).items():
            refused[rule] = refused.get(rule, 0) + count
    print("refused:", ", ".join(f"{rule} {count}" for rule, count in sorted(refused.items(), key=lambda row: -row[1])))
    bad = [result for result in results if result["verdict"] in BAD]
    for result in bad:
        print(json.dumps(result)[:900])
    if options.out:
        (options.out / "summary.json").write_text(json.dumps({**summary, "refused": refused, "findings": bad}, indent=1))
        (options.out / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
