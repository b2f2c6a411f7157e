#!/usr/bin/env python3
"""Changes plans of small jobs, and compares runs of those changes that `shardc-run` accepts with runs of the plans.

    changed_plans.py SHARDC SHARDC-RUN [--cases N] [--jobs N] [--seconds S] [--seed N] [--out DIR] [--recipes DIR]

A changed plan must be refused at its start, or must train, report, count and save the same, to the last digit: losses,
norms, evaluations, losses of routers and of further tokens, and every byte of each checkpoint, in a run from the
beginning and in one that continues from the second step. Runs execute ready ops in random orders, in poisoned memory.
One change in three is a double one. Case i of a seed is always the same: --only I repeats it, and --keep leaves its files.
"""

import argparse
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "Inputs")]

from beside import call, divide, print_table, run_plan, write_indexed, write_packs
from changed_plans_jobs import JOBS, settings_of
from plan_changes import CHANGES, Indexed, Vocabulary
from plan_text import draw_of, lines_of, text_of

VERDICTS = ["refused", "same", "sources", "passes", "differs", "stopped", "waits", "crashed", "broken"]
# Kinds of changes that often leave a plan whole: they are drawn more often.
LIKELY = ("attribute", "operand: another", "op: bypassed", "op: again", "in", "out", "job", "everywhere", "program",
          "groups", "table block", "table param", "table cell: kind", "table cell: of", "clause: acc", "clause: else",
          "clause: if", "clause: of", "line", "type: rows", "table channel", "place: slots")
BAD = {"differs", "stopped", "waits", "crashed", "broken"}
# What docs/plan.md lets differ from the specification: passes choose these fields, and estimates follow.
CHOSEN = ("ddp.keep_frozen", "model.recompute_layers", "model.tp_comm_overlap",
          "model.pipeline_model_parallel_layout", "derived.predicted", "derived.memory")


def make_data(shardc, folder):
    for name, packs, seed in (("packs", 64, 1), ("more", 16, 2)):
        write_packs(folder / f"{name}.raw", 16, 61, packs, seed)
        status, out, _ = call([shardc, "data", "pack", f"{name}.raw", "-o", name, "--pack=keep"], folder)
        if status:
            sys.exit(f"packs were refused: {out}")
    write_indexed(folder / "words", 61, 200, 3)
    write_indexed(folder / "words2", 61, 200, 4)
    return {"PACKS": folder / "packs", "MORE": folder / "more", "WORDS": folder / "words", "WORDS2": folder / "words2"}


def compile_jobs(options, folder):
    data = make_data(options.shardc, folder)
    plans = {}
    for name in options.jobs_of:
        plan = folder / f"{name}.plan"
        command = [options.shardc, "dump-plan", options.recipes / f"{JOBS[name][0]}.recipe", "-o", plan]
        for setting in settings_of(name, data):
            command += ["--set", setting]
        status, out, _ = call(command, folder)
        if status:
            sys.exit(f"{name} was refused: {out}")
        plans[name] = plan
    return plans


def reported(out):
    """The lines of the output that report steps, without times."""
    lines = [re.sub(r"  [\d.]+[kM]? tokens/s.*", "", line) for line in out.splitlines()
             if re.match(r"(step|evaluation|saved|resuming|test|done) ", line)]
    return sorted(re.sub(r" in [\d:]+  ", "  ", line) for line in lines)


def is_rounding(why):
    """Whether all figures of a difference agree within 1e-6, or differ by less: then only sums have another order."""
    apart = re.search(r"max a(?:bs difference )?([\d.e+-]+)", why)
    if "saved" in why:
        return bool(apart) and float(apart[1]) < 1e-6
    first, _, second = why.partition(" is missing; there are ")
    one, two = ([float(text) for text in re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", part)] for part in (first, second))
    return len(one) == len(two) > 0 and all(abs(a - b) <= 1e-6 * max(abs(a), abs(b)) for a, b in zip(one, two))


def lines_that_differ(first, second):
    first, second = [json.dumps(line) for line in first], [json.dumps(line) for line in second]
    for line in first:
        if line not in second:
            return f"{line} is missing; there are {[other for other in second if other not in first][:1]}"
    return f"{[line for line in second if line not in first][:1]} is new" if sorted(first) != sorted(second) else ""


def difference(base, ran):
    """What differs between two runs, as (what, files)."""
    if base.lines != ran.lines:
        found = lines_that_differ(base.lines, ran.lines)
        if found:
            return "reported", found
    if reported(base.out) != reported(ran.out):
        found = [line for line in reported(ran.out) if line not in reported(base.out)][:2]
        return "printed", f"{found} instead of {[x for x in reported(base.out) if x not in reported(ran.out)][:2]}"
    names = [name for name in sorted(set(base.files) | set(ran.files)) if base.files.get(name) != ran.files.get(name)]
    return ("saved", ", ".join(names)) if names else ("", "")


def contents(bases, name, place, files):
    """What differs between checkpoints of which these files differ; nothing if only the places of tensors do."""
    for kept in sorted((bases.folder / f"saved-{name}").glob("iter_*")):
        if (place / "ck" / kept.name).exists() and any(file.startswith(kept.name + "/") for file in files):
            status, out, _ = call([bases.options.shardc, "ckpt", "diff", kept, place / "ck" / kept.name], place)
            if status:
                return out.replace(str(bases.folder), "")[:400]
    others = [file for file in files if not file.endswith((".distcp", ".metadata", ".shardc_integrity"))]
    return ", ".join(others[:12])


class Bases:
    """The plans, what their runs leave, and a checkpoint of each from which runs continue."""

    def __init__(self, options, plans, folder):
        self.options, self.plans, self.folder = options, plans, folder
        self.vocabulary = Vocabulary()
        self.lines = {name: lines_of(plan.read_text()) for name, plan in plans.items()}
        for lines in self.lines.values():
            self.vocabulary.add(lines)
        if options.pages:
            self.vocabulary.read_pages(options.pages)
        self.ran = {}

    def of(self, name):
        """Runs of the unchanged plan: from the beginning, and continued from the checkpoint of step 2."""
        if name not in self.ran:
            self.ran[name] = pickle.loads((self.folder / f"{name}.ran").read_bytes())
        return self.ran[name]

    def make(self, name, place):
        """Runs the unchanged plan, for all processes."""
        plan = place / "base.plan"
        plan.write_text(text_of(self.lines[name]))
        first = run_plan(self.options.run, plan, place, options=["--seed-schedule", "1"])
        if first.status:
            raise RuntimeError(f"the plan of {name} fails: {first.out[:800]}")
        kept = self.folder / f"kept-{name}"
        early = sorted((place / "ck").glob("iter_*"))[0]
        kept.mkdir()
        shutil.copytree(early, kept / early.name)
        (kept / "latest_checkpointed_iteration.txt").write_text(str(int(early.name[5:])))
        again = self.continued(name, plan, place, "2")
        if again.status:
            raise RuntimeError(f"the plan of {name} fails when it continues: {again.out[:800]}")
        (place / "ck").rename(self.folder / f"saved-{name}")
        (self.folder / f"{name}.ran").write_bytes(pickle.dumps((first, again)))

    def continued(self, name, plan, place, seed):
        shutil.rmtree(place / "ck", ignore_errors=True)
        shutil.copytree(self.folder / f"kept-{name}", place / "ck")
        return run_plan(self.options.run, plan, place, options=["--seed-schedule", seed])


def judge(bases, name, plan, place, seed):
    """The verdict on a changed plan, the reason, and the id of a refusal."""
    for number, base in enumerate(bases.of(name)):
        shutil.rmtree(place / "ck", ignore_errors=True)
        ran = bases.continued(name, plan, place, seed) if number else run_plan(
            bases.options.run, plan, place, options=["--seed-schedule", seed])
        when = "continued: " if number else ""
        if ran.expired:
            return "waits", when + ran.out[-400:], ""
        if ran.status < 0 or ran.status > 128:
            return "crashed", f"{when}status {ran.status}: {ran.out[-400:]}", ""
        rule, line = ran.error()
        if ran.status in (1, 3) and not ran.began():
            return ("refused", line, rule) if rule else ("stopped", "without an id: " + ran.out[-400:], "")
        if ran.status:
            return "stopped", f"{when}status {ran.status}: {line or ran.out[-400:]}", rule
        kind, found = difference(base, ran)
        if kind == "saved":
            found = contents(bases, name, place, found.split(", "))
        if found:
            return "differs", f"{when}{kind}: {found}", ""
    return "same", "", ""


def change(plan, draw, near):
    """Makes one change; returns its kind and what it did."""
    names = sorted(CHANGES) + 2 * sorted(name for name in CHANGES if name.startswith(LIKELY))
    names += 8 * sorted(name for name in CHANGES if name.startswith("part"))
    names = [name for name in names if not name.endswith(": name") or draw.random() < 0.2]
    if near and draw.random() < 0.5:
        names = [name for name in names if name.split(":")[0].split()[0] == near.split(":")[0].split()[0]]
    for _ in range(200):
        name = draw.choice(names)
        before = plan.text()
        try:
            what = CHANGES[name](plan, draw)
        except (IndexError, KeyError, ValueError, TypeError):
            what = None  # the change met a form that an earlier change has made
        if what is not None and plan.text() != before:
            plan.read()
            return name, what
        if plan.text() != before:
            plan.lines = lines_of(before)
            plan.read()
    return None, None


def job_of(options, draw):
    return draw.choice(sorted(options.jobs_of))


def case(bases, index, place):
    draw = draw_of(bases.options.seed, index)
    name = job_of(bases.options, draw)
    plan = Indexed(bases.lines[name], bases.vocabulary)
    kinds, whats = [], []
    for _ in range(2 if index % 3 == 2 else 1):
        kind, what = change(plan, draw, kinds[0] if kinds else "")
        if kind:
            kinds.append(kind)
            whats.append(what)
    file = place / "changed.plan"
    file.write_text(plan.text())
    began = time.monotonic()
    verdict, why, rule = judge(bases, name, file, place, str(index + 1))
    if verdict == "differs" and "saved: " in why:
        files = why.split("saved: ")[1].split(", ")
        if all("/recipe/" in file for file in files) and "source" in kinds:
            verdict = "sources"
        elif any(field in what for what in whats for field in CHOSEN) and (
                all(file.endswith("run_config.yaml") for file in files)):
            verdict = "passes"
    free = any("chunk_rows" in what for what in whats) or all(kind == "groups: axes" for kind in kinds)
    if verdict == "differs" and free and is_rounding(why):
        verdict = "passes"  # a pass cuts the rows of losses into chunks; equal axes may have each other's part
    if bases.options.keep or (verdict in BAD and bases.options.out):
        kept = bases.options.out / f"{verdict}-{index}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        (kept / "changed.plan").write_text(plan.text())
        (kept / "base.plan").write_text(text_of(bases.lines[name]))
        (kept / "README").write_text(f"{name}: {kinds} {whats}\n{verdict}: {why}\n")
    return {"case": index, "job": name, "kinds": kinds, "what": whats, "verdict": verdict, "why": why[:600], "rule": rule,
            "seconds": round(time.monotonic() - began, 2)}


def parsed():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("shardc", type=lambda path: Path(path).resolve())
    options.add_argument("run", type=lambda path: Path(path).resolve())
    long = os.environ.get("SHARDC_LONG", "0") not in ("", "0")
    options.add_argument("--cases", type=int, default=30_000 if long else 30)
    options.add_argument("--first", type=int, default=0, help="the index of the first case")
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--seconds", type=float, default=86_400)
    options.add_argument("--seed", type=int, default=72)
    options.add_argument("--out", type=lambda path: Path(path).resolve(), help="folder of findings and summary.json")
    options.add_argument("--recipes", type=lambda path: Path(path).resolve(), default=HERE.parents[1] / "recipes")
    options.add_argument("--pages", type=lambda path: Path(path).resolve(), default=HERE.parents[1] / "docs")
    options.add_argument("--only", type=int, help="runs only this case")
    options.add_argument("--of", help="jobs, with commas between them; default: all")
    options.add_argument("--keep", action="store_true", help="keeps the files of each case")
    found = options.parse_args()
    found.jobs_of = found.of.split(",") if found.of else list(JOBS)
    if found.keep and not found.out:
        options.error("--keep needs --out")
    return found


def main():
    options = parsed()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="changed-plans-") as folder:
        folder = Path(folder)
        began = time.monotonic()
        indices = range(options.first, options.first + options.cases) if options.only is None else [options.only]
        needed = {job_of(options, draw_of(options.seed, index)) for index in indices}
        bases = Bases(options, compile_jobs(options, folder), folder)

        def make(_, number, place):
            bases.make(sorted(needed)[number], place)
            return {}

        def left():
            return options.seconds - (time.monotonic() - began)

        places = folder / "work"
        places.mkdir()
        made = divide(len(needed), options.jobs, left(), make, None, places)
        if any("why" in result for result in made):
            sys.exit(str([result for result in made if "why" in result]))
        results = divide(len(indices), options.jobs, left(), lambda _, number, place: case(bases, indices[number], place),
                         None, places)
    rows, totals = print_table(results, lambda result: result.get("kinds") or ["none"], VERDICTS)
    rules = {}
    for result in results:
        if result.get("rule"):
            rules[result["rule"]] = rules.get(result["rule"], 0) + 1
    print("refused by", ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items(), key=lambda row: -row[1])))
    bad = [result for result in results if result["verdict"] in BAD]
    for result in bad:
        print(json.dumps(result)[:700])
    if options.out:
        summary = {"seed": options.seed, "cases": len(results), "totals": totals, "kinds": rows, "rules": rules,
                   "findings": bad, "sources": [r for r in results if r["verdict"] in ("sources", "passes")][:50]}
        (options.out / "summary.json").write_text(json.dumps(summary, indent=1))
        (options.out / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
