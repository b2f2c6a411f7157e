#!/usr/bin/env python3
"""Measures whether the layout that `shardc tune` chooses is the fastest one on a GPU.

    tune_winners.py prepare FOLDER --gpu=h100 [--shardc=PROGRAM] [--only=PROBLEM ...] [--others=N]
    tune_winners.py measure FOLDER [--shardc-run=PROGRAM] [--first=N] [--count=N] [--seconds=S] [--results=FILE]
    tune_winners.py table FOLDER [RESULTS...] [--record FILE HARDWARE]

`prepare` searches each of PROBLEMS for one GPU, and compiles the winner and N other layouts that fit, 12 by default, chosen
among all of them by a fixed seed. The plans and manifest.json stay in FOLDER. `measure` needs FOLDER and shardc-run alone. It runs the plans
of problems N to N + COUNT - 1, then the winner and the fastest of the others once more, and prints a table. What a run gave is a
line of RESULTS (FOLDER/measured.jsonl by default), and runs that have their lines are not repeated; no run begins after S
seconds. `table` prints the table of several such files. The time of a step is the mean of the last half of a run's steps.
"""

import argparse
import json
import lzma
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import record_figure

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = 34
MOST_STEPS, LEAST_STEPS, RUN_SECONDS = 12, 6, 4.0
RUN_SECONDS_MAX = 120  # start included


def llama(sequence, batch, *more):
    return "test/gpu/llama_1b.recipe", [f"model.seq_length={sequence}", f"train.global_batch_size={batch}"], more


def gpt2(batch, *more):
    return "recipes/gpt2/gpt2_124m.recipe", [f"train.global_batch_size={batch}"], more


# NAME: a recipe, what is set, further options of tune.
PROBLEMS = {
    "llama_1b-s1024-b32": llama(1024, 32),
    "llama_1b-s2048-b16-28gib": llama(2048, 16, "--memory=28"),
    "llama_1b-s4096-b8-fp8-40gib": llama(4096, 8, "--memory=40", "--allow=fp8"),
    "llama_1b-s8192-b4-40gib": llama(8192, 4, "--memory=40"),
    "llama_1b-s16384-b2-fp8-48gib": llama(16384, 2, "--memory=48", "--allow=fp8"),
    "llama_1b-s32768-b1-fp8": llama(32768, 1, "--allow=fp8"),
    "gpt2_124m-b64-5gib": gpt2(64, "--memory=5"),
    "gpt2_124m-b256": gpt2(256),
}


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def layouts_of(shardc, words, more, listed):
    """Layouts that tune compiled and that fit, the fastest first."""
    output([shardc, "tune", *words, "--free=all", "--micro-batch-max=16", "--list", listed, "--force", *more])
    return [json.loads(line) for line in listed.read_text().splitlines()]


def prepare(arguments):
    folder = pathlib.Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"gpu": arguments.gpu, "problems": []}
    with tempfile.TemporaryDirectory() as scratch:
        listed, plan, overlay = (pathlib.Path(scratch) / name for name in ("listed", "plan", "overlay.recipe"))
        overlay.write_text("recipe one { train { micro_batch_size = 1 } }\n")  # divides each batch
        for name, (recipe, settings, more) in PROBLEMS.items():
            if arguments.only and name not in arguments.only:
                continue
            one_gpu = [f"cluster.gpu={arguments.gpu}", "cluster.nodes=1", "cluster.gpus_per_node=1", "checkpoint.save=none"]
            words = [ROOT / recipe, f"--overlay={overlay}", *(f"--set={setting}" for setting in [*settings, *one_gpu])]
            winner = layouts_of(arguments.shardc, words, more, listed)[0]
            others = [row for row in layouts_of(arguments.shardc, words, [*more, "--exhaustive"], listed)
                      if row["settings"] != winner["settings"]]
            chosen = random.Random(f"{SEED} {name}").sample(others, min(arguments.others, len(others)))
            rows = []
            for number, row in enumerate([winner, *sorted(chosen, key=lambda row: row["seconds"])]):
                steps = max(LEAST_STEPS, min(MOST_STEPS, int(RUN_SECONDS / row["seconds"])))
                layout = [f"--set={setting}" for setting in row["settings"]]
                output([arguments.shardc, "dump-plan", *words, *layout, f"--set=train.train_iters={steps}", "-o", plan])
                file = f"{name}-{number}.plan.xz"
                (folder / file).write_bytes(lzma.compress(plan.read_bytes()))
                rows.append({"plan": file, "layout": row["layout"], "predicted": row["tokens_per_s"]})
            manifest["problems"].append({"name": name, "fit": 1 + len(others), "rows": rows})
            print(f"{name}: {1 + len(others)} layouts fit, {len(rows)} are compiled; the winner has "
                  f"{words_of(rows[0]['layout'])}", flush=True)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def words_of(layout):
    return ", ".join(f"{column} {word}" for column, word in layout.items()
                     if column in ("mbs", "recompute", "precision") and word != "-")


def steps_of(shardc_run, plan, options=()):
    """Tokens and seconds of each step of a compressed plan that was measured, or a text that says why there are none."""
    with tempfile.TemporaryDirectory() as scratch:
        file, metrics = pathlib.Path(scratch) / "p.plan", pathlib.Path(scratch) / "m.jsonl"
        file.write_bytes(lzma.decompress(plan.read_bytes()))
        try:
            done = subprocess.run([str(shardc_run), f"--metrics={metrics}", *options, str(file)], capture_output=True, text=True,
                                  timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return f"no end within {RUN_SECONDS_MAX} s"
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["no message"])[-1]
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    measured = [(step["tokens"], step["tokens"] / step["tokens_per_s"]) for step in steps if "tokens_per_s" in step]
    return measured or "no step was measured"


def run(shardc_run, plan):
    """Tokens per second, or a text that says why there are none."""
    steps = steps_of(shardc_run, plan)
    if isinstance(steps, str):
        return steps
    half = steps[len(steps) // 2:]
    return sum(tokens for tokens, _ in half) / sum(seconds for _, seconds in half)


def results_of(files):
    """By plan: the results of its runs."""
    results = {}
    for file in files:
        for line in file.read_text().splitlines() if file.exists() else []:
            row = json.loads(line)
            results.setdefault(row["plan"], []).append(row["result"])
    return results


def figure(results, row):
    """Mean tokens per second of a row's runs; None if it has no runs or one of them failed."""
    runs = results.get(row["plan"], [])
    return statistics.mean(runs) if runs and not any(isinstance(each, str) for each in runs) else None


def best_of(results, rows):
    measured = [row for row in rows if figure(results, row)]
    return max(measured, key=lambda row: figure(results, row)) if measured else None


def measure(arguments):
    folder, begin = pathlib.Path(arguments.folder), time.monotonic()
    file = pathlib.Path(arguments.results or folder / "measured.jsonl")
    problems = json.loads((folder / "manifest.json").read_text())["problems"]
    last = len(problems) if arguments.count is None else arguments.first + arguments.count

    def at_least(row, count):
        while len(results_of([file]).get(row["plan"], [])) < count:
            if time.monotonic() - begin > arguments.seconds:
                sys.exit(f"{arguments.seconds} s are over; the same command goes on")
            result = run(arguments.shardc_run, folder / row["plan"])
            with file.open("a") as lines:
                lines.write(json.dumps({"plan": row["plan"], "result": result}) + "\n")
            print(f"{row['plan']}: {result if isinstance(result, str) else f'{result:,.0f} tokens/s'}", flush=True)

    for problem in problems[arguments.first:last]:
        winner, *others = problem["rows"]
        for row in problem["rows"]:
            at_least(row, 1)
        at_least(winner, 2)
        if other := best_of(results_of([file]), others):
            at_least(other, 2)
    print_table(problems[arguments.first:last], results_of([file]))


def print_table(problems, results, record=None):
    print("| problem | layouts that fit | measured | the winner has | predicted tokens/s | measured | best measured | winner / best |\n"
          "|---|--:|--:|---|--:|--:|--:|--:|")
    ratios = []
    for problem in problems:
        winner, *others = problem["rows"]
        own, best = figure(results, winner), best_of(results, problem["rows"])
        count = sum(row["plan"] in results for row in problem["rows"])
        if not own:
            print(f"| {problem['name']} | {problem['fit']} | {count} | {words_of(winner['layout'])} | | "
                  f"{(results.get(winner['plan']) or ['no run'])[-1]} | | |")
            continue
        most = figure(results, best)
        ratios.append(own / most)
        of = "" if best is winner else f" ({words_of(best['layout'])})"
        print(f"| {problem['name']} | {problem['fit']} | {count} | {words_of(winner['layout'])} | {winner['predicted']:,.0f} | {own:,.0f} | "
              f"{most:,.0f}{of} | {own / most:.3f} |")
        if record:
            more = {"layouts that fit": str(problem["fit"]), "measured": str(count), "the winner has": words_of(winner["layout"])}
            record_figure.record(record[0], case=problem["name"], measure="tokens/s", ours=round(own), predicted=round(winner["predicted"]),
                                 peer=round(most), peer_is="the fastest measured layout", more=more, hardware=record[1], table="measured")
        for row in others:
            if isinstance((results.get(row["plan"]) or [0])[-1], str):
                print(f"{row['plan']}: {results[row['plan']][-1]}", file=sys.stderr)
    if ratios:
        print(f"\n{len(ratios)} problems: the winner has at least {min(ratios):.1%} of the best measured tokens/s")


def table(arguments):
    folder = pathlib.Path(arguments.folder)
    problems = json.loads((folder / "manifest.json").read_text())["problems"]
    print_table(problems, results_of([pathlib.Path(file) for file in arguments.results or [folder / "measured.jsonl"]]), arguments.record)


def make_stages(text, prepare_call):
    """A parser with this help, its stages, and `prepare`, which such scripts have alike: a folder, a GPU and a compiler."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    stage = stages.add_parser("prepare")
    stage.add_argument("folder")
    stage.add_argument("--gpu", required=True, help="as cluster.gpu: h100 or h200")
    stage.add_argument("--shardc", default=ROOT / "build/release/bin/shardc")
    stage.set_defaults(call=prepare_call)
    return parser, stages, stage


def main(words):
    parser, stages, stage = make_stages(__doc__, prepare)
    stage.add_argument("--others", type=int, default=12, help="layouts beside the winner")
    stage.add_argument("--only", action="append", choices=PROBLEMS, help="only this problem")
    stage = stages.add_parser("measure")
    stage.add_argument("folder")
    stage.add_argument("--shardc-run", default=ROOT / "build/release/bin/shardc-run")
    stage.add_argument("--first", type=int, default=0, help="number of the first problem, from 0")
    stage.add_argument("--count", type=int, help="problems; default: all that follow")
    stage.add_argument("--seconds", type=float, default=540, help="after which no run begins")
    stage.add_argument("--results", help="file of the lines; default: FOLDER/measured.jsonl")
    stage.set_defaults(call=measure)
    stage = stages.add_parser("table")
    stage.add_argument("folder")
    stage.add_argument("results", nargs="*")
    record_figure.add_argument(stage)
    stage.set_defaults(call=table)
    arguments = parser.parse_args(words)
    arguments.call(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
