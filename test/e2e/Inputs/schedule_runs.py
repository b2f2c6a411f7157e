#!/usr/bin/env python3
"""Trains a small recipe with pipeline schedules of files. Needs only Python.

    schedule_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    drawn      schedules in random orders of passes, some with cells of two, chunks in a loop, in a V, or anywhere, on 2 to 8 stages
               with 1 to 3 chunks each, strategy and tied tables drawn too; compared with one rank: losses and norms of 3 steps, and gradients of the first,
               within 1e-5 relative. 2 of them run unless SHARDC_LONG=1, which runs 2,000, or COUNT=n; SEED=n (1 by default) draws
               them.
    mutations  the same schedules with a pass dropped, doubled, exchanged with another one or moved to another stage: refused at a
               cell, or as near to one rank as before
    amaxes     in fp8 with delayed scaling, two orders of microbatches scale by the same amaxes: losses and norms of 3 steps, and
               gradients of the first, within 1e-5 relative
    again      a schedule that is written and read gives the same plan to the byte
"""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from compare_runs import LONG, STRATEGIES, run_check, strategy_settings
from hybrid_runs import compare, needs as require_words, with_gradients
from tensor_runs import SIZES

COUNT = int(os.environ.get("COUNT", 2000 if LONG else 2))
STEPS = 3
# What plans of equal roles differ in: the hash of the text, and how the job names the schedule.
DIFFERS = re.compile(r"(?ms)(?<=\") hash \w+$|^  (model.pipeline_(?:schedule|placement)|derived.pass_order) = .*?\n")
ERROR = re.compile(r"^(\S+?):(\d+):(\d+): error: (.*) \[schedule-(\w+)\]", re.M)


def placement(draw):
    stages, chunks = draw.randint(2, 8), draw.randint(1, 3)
    kind = draw.choice(("loop", "V", "any"))
    if kind == "loop":
        return [chunk % stages for chunk in range(stages * chunks)]
    if kind == "V":
        return [stages - 1 - c % stages if c // stages % 2 else c % stages for c in range(stages * chunks)]
    stage_of = [*range(stages), *(draw.randrange(stages) for _ in range(stages * (chunks - 1)))]
    draw.shuffle(stage_of)
    return stage_of


def needs(stage_of, is_split, kind, chunk, microbatch):
    """The passes that must end before this one."""
    if kind == "F":
        return [("F", chunk - 1, microbatch)] if chunk > 0 else []
    if kind == "W":
        return [("I", chunk, microbatch)]
    later = (chunk + 1, microbatch)
    return [("F", chunk, microbatch)] + ([("I" if is_split[later] else "B", *later)] if chunk + 1 < len(stage_of) else [])


def order(draw, stage_of, microbatches):
    """Rows of passes, each after those that it needs; and those that begin a cell of two."""
    share = draw.choice((0, 0.5, 1))
    is_split = {(c, i): draw.random() < share for c in range(len(stage_of)) for i in range(microbatches)}
    left = [(kind, c, i) for (c, i), split in is_split.items() for kind in ("FIW" if split else "FB")]
    waits = {each: needs(stage_of, is_split, *each) for each in left}
    done, rows, pairs = set(), [[] for _ in range(max(stage_of) + 1)], set()
    paired = draw.choice((0, 0.5, 1))
    rank = draw.choice((lambda each: draw.random(), lambda each: draw.random() + each[2] / microbatches,
                        lambda each: draw.random() - (each[0] != "F")))
    while left:
        ready = [one for one in left if all(need in done for need in waits[one])]
        cell = [min(ready, key=rank)]
        stage, kind = stage_of[cell[0][1]], cell[0][0]
        others = [one for one in ready if stage_of[one[1]] == stage and one[0] in ("BI" if kind == "F" else "F" * (kind != "W"))]
        if others and draw.random() < paired:
            pairs.add(cell[0])
            cell.append(draw.choice(others))
        for each in cell:
            left.remove(each)
            done.add(each)
            rows[stage].append(each)
    return rows, pairs


def text_of(rows, pairs=()):
    """A pass that begins a cell shares it with the next pass of its row if these are a forward pass and one that makes input
    gradients."""
    lines = []
    for row in rows:
        passes, cells = [f"{chunk}{kind}{microbatch}" for kind, chunk, microbatch in row], []
        while passes:
            at = len(row) - len(passes)
            kinds = "".join(kind for kind, _, _ in row[at:at + 2])
            joins = row[at] in pairs and kinds in ("FB", "FI", "BF", "IF")
            cells.append(f"({passes.pop(0)};{passes.pop(0)})OVERLAP_F_B" if joins else passes.pop(0))
        lines.append(",".join(cells) + "\n")
    return "".join(lines)


def drawn_cases():
    draw = random.Random(int(os.environ.get("SEED", "1")))
    for number in range(COUNT):
        stage_of, microbatches = placement(draw), draw.randint(1, 6)
        rows, pairs = order(draw, stage_of, microbatches)
        stages, ranks = len(rows), 2 if len(rows) <= 4 and draw.random() < 0.5 else 1
        model = [*SIZES, f"model.num_layers={len(stage_of)}", f"train.train_iters={STEPS}", "train.micro_batch_size=1",
                 f"train.global_batch_size={microbatches * ranks}", "cluster.gpus_per_node=1",
                 f"model.share_embeddings_and_output_weights={str(draw.random() < 0.5).lower()}"]
        strategy = draw.choice(STRATEGIES) if ranks > 1 else "no_shard"
        own = [*strategy_settings(strategy), f"model.pipeline_model_parallel_size={stages}",
               f"model.virtual_pipeline_model_parallel_size={len(stage_of) // stages}", f"cluster.gpus_per_node={stages * ranks}"]
        name = f"schedule {number}: chunks on {stage_of}, {microbatches} microbatches, {len(pairs)} pairs, {strategy} on {ranks}"
        yield draw, name, rows, pairs, model, own


class OneRank:
    """What one rank computes. Many schedules share a model."""

    def __init__(self, runner):
        self.runner, self.known = runner, {}

    def __call__(self, model):
        if tuple(model) not in self.known:
            self.known[tuple(model)] = with_gradients(self.runner, *model)
        return self.known[tuple(model)]


def check_drawn(runner):
    one_rank = OneRank(runner)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.csv"
        for _, name, rows, pairs, model, own in drawn_cases():
            path.write_text(text_of(rows, pairs))
            compare(name, with_gradients(runner, *model, *own, f'model.pipeline_schedule_csv="{path}"'), one_rank(model))
    print(f"{COUNT} schedules")


def mutated(draw, rows):
    rows = [list(row) for row in rows]
    row = draw.choice(rows)
    at, other, how = draw.randrange(len(row)), draw.randrange(len(row)), draw.choice(("dropped", "doubled", "exchanged", "moved"))
    changed = {row[at], row[other]} if how == "exchanged" else {row[at]}
    if how == "doubled":
        row.insert(other, row[at])
    elif how == "exchanged":
        row[at], row[other] = row[other], row[at]
    else:
        moved = row.pop(at)
        if how == "moved":
            to = draw.choice([each for each in rows if each is not row])
            to.insert(draw.randrange(len(to) + 1), moved)
    return how, rows, changed


def check_mutations(runner):
    counts, one_rank = {}, OneRank(runner)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.csv"
        for draw, name, rows, pairs, model, own in drawn_cases():
            how, rows, changed = mutated(draw, rows)
            path.write_text(text_of(rows, pairs))
            settings = [*model, *own, f'model.pipeline_schedule_csv="{path}"']
            done = subprocess.run(["shardc", "check", runner.recipe, *runner.arguments(settings)], capture_output=True, text=True)
            if done.returncode == 0:
                compare(f"{name}, {how}", with_gradients(runner, *settings), one_rank(model))
                counts[f"{how}: valid"] = counts.get(f"{how}: valid", 0) + 1
                continue
            error = ERROR.search(done.stderr)
            if not error or pathlib.Path(error[1]) != path:
                sys.exit(f"{name}, {how}: {done.stderr}")
            lines = path.read_text().splitlines()
            cell = lines[int(error[2]) - 1][int(error[3]) - 1:].split(",")[0]
            names = {f"{chunk}{kind}{microbatch}" for kind, chunk, microbatch in changed}
            parts = {f"{chunk}{kind}{microbatch}" for _, chunk, microbatch in changed for kind in "FBIW"}
            own = [sum(each[1] in {chunk for _, chunk, _ in changed} for each in row) for row in rows]  # the chunk's passes, by row
            if how == "moved" and own.count(1) == 2:
                names |= parts  # either row may be the chunk's
            near = bool(names & set(re.split(r"[(;)]", cell))) or any(f"'{part}'" in error[4] for part in parts) or how == "exchanged" or error[5] == "shape"
            if not near:
                sys.exit(f"{name}, {how} {names}: the message is at '{cell}': {error[4]}")
            counts[f"{how}: {error[5]}"] = counts.get(f"{how}: {error[5]}", 0) + 1
    print(f"{COUNT} mutations: {dict(sorted(counts.items()))}")


def check_amaxes(runner):
    model = [*SIZES, "model.num_layers=2", f"train.train_iters={STEPS}", "train.micro_batch_size=1", "train.global_batch_size=3",
             "cluster.gpus_per_node=2", "model.pipeline_model_parallel_size=2", "mixed_precision=bf16_mixed",
             "mixed_precision.grad_reduce_in_fp32=true", "mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed"]
    with tempfile.TemporaryDirectory() as folder:
        path, runs = pathlib.Path(folder) / "x.csv", []
        for microbatches in ((0, 1, 2), (2, 0, 1)):
            path.write_text(text_of([[(kind, 0, i) for kind in "FB" for i in microbatches],
                                     [(kind, 1, i) for i in microbatches for kind in "FB"]]))
            runs.append(with_gradients(runner, *model, f'model.pipeline_schedule_csv="{path}"'))
            require_words(runner.plan_text(), "swiglu_bwd.quantize_delayed")
        compare("microbatches 2, 0, 1 after 0, 1, 2", runs[1], runs[0])


def check_again(runner):
    """The job of a plan that reads a file lists its passes, and does not name a schedule; all else is equal."""
    sizes = [*SIZES, "model.num_layers=8", "train.micro_batch_size=1", "train.global_batch_size=6", "cluster.gpus_per_node=2",
             "model.pipeline_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=2"]
    with tempfile.TemporaryDirectory() as folder:
        for schedule, placed in (("interleaved", "looped"), ("zb_v", "v"), ("dual_pipe_v", "v"), ("looped_bfs", "looped"),
                                 ("looped_bfs", "v"), ("looped_bfs", "1,0,0,1")):
            path = f"{folder}/{schedule}.csv"
            named = [*sizes, f"model.pipeline_schedule={schedule}", f'model.pipeline_placement="{placed}"']
            runner.call(["shardc", "dump-plan", runner.recipe, "--emit=schedule", "-o", path, *runner.arguments(named)])
            listed = [*sizes, f'model.pipeline_schedule_csv="{path}"']
            again = runner.call(["shardc", "dump-plan", runner.recipe, "--emit=schedule", *runner.arguments(listed)])
            if again != pathlib.Path(path).read_text():
                sys.exit(f"{schedule}: read and written again, the schedule is another one")
            plans = [runner.call(["shardc", "dump-plan", runner.recipe, *runner.arguments(settings)]) for settings in (named, listed)]
            if DIFFERS.sub("", plans[0]) != DIFFERS.sub("", plans[1]):
                sys.exit(f"{schedule}: read from a file, the schedule gives another plan")
            print(f"{schedule}, placed {placed}: the same plan from its file")


if __name__ == "__main__":
    run_check({"drawn": check_drawn, "mutations": check_mutations, "amaxes": check_amaxes, "again": check_again})
