#!/usr/bin/env python3
"""Trains with rows in groups, and compares a step with a dense formulation. Needs only Python.

    dense_runs.py PLAN

PLAN is test/unit/plan/plans/runs.plan. The dense formulation has no groups of rows, places or counts: it multiplies
each row by the matrix of each expert that the row chose, and adds the results. Parameters, tokens and results of the
first step are read from the run's output. Sums over rows and all gradients must agree within 1e-5 relative. Bytes of
invalid rows must not matter: a random schedule with poisoned memory gives bitwise the same metrics, and no result that
--check examines is NaN.
"""

import array
import json
import pathlib
import subprocess
import sys
import tempfile

ROWS, CHOICES, COLUMNS, RUNS, SLOTS = 4, 2, 4, 3, 2
TABLE, EXPERTS = 32, 48  # elements; behind them are the weights of choices
TOLERANCE = 1e-5


def run(plan, *options):
    subprocess.run(["shardc-run", plan, *options], check=True, stdout=subprocess.DEVNULL)


def metrics(plan, folder, name, *options):
    run(plan, f"--metrics={folder}/{name}", *options)
    lines = (folder / name).read_text().splitlines()
    return [{key: line[key] for key in ("loss", "grad_norm")} for line in map(json.loads, lines)]


class Dump:
    def __init__(self, folder):
        self.folder = folder
        self.files = {(t["name"], t["rank"], t["microbatch"]): t for t in json.loads((folder / "index.json").read_text())["tensors"]}

    def __getitem__(self, key):
        tensor = self.files[key]
        kind = {"f32": "f", "i32": "i"}[tensor["dtype"]]
        return list(array.array(kind, (self.folder / tensor["file"]).read_bytes()))


def dense(weights, ids, rows):
    """Sums, and gradients of table, matrices and weights of choices, where each sum is its own gradient."""
    table, experts, gates = weights[:TABLE], weights[TABLE:TABLE + EXPERTS], weights[TABLE + EXPERTS:]
    d_table, d_experts, d_gates = [0.0] * len(table), [0.0] * len(experts), [0.0] * len(gates)

    def matrix(e, i, j):
        return (e * COLUMNS + i) * COLUMNS + j

    sums = []
    for t in range(ROWS):
        x = table[rows[t] * COLUMNS:(rows[t] + 1) * COLUMNS]
        chosen = [(t * CHOICES + k, ids[t * CHOICES + k]) for k in range(CHOICES)]
        chosen = [(at, id % RUNS) for at, id in chosen if id < SLOTS * RUNS]
        made = [[sum(experts[matrix(e, i, j)] * x[j] for j in range(COLUMNS)) for i in range(COLUMNS)] for _, e in chosen]
        z = [sum(gates[at] * max(h[i], 0) ** 2 for (at, _), h in zip(chosen, made)) for i in range(COLUMNS)]
        for (at, e), h in zip(chosen, made):
            d_gates[at] += sum(z[i] * max(h[i], 0) ** 2 for i in range(COLUMNS))
            for i in range(COLUMNS):
                d_h = gates[at] * z[i] * 2 * max(h[i], 0)
                for j in range(COLUMNS):
                    d_experts[matrix(e, i, j)] += d_h * x[j]
                    d_table[rows[t] * COLUMNS + j] += d_h * experts[matrix(e, i, j)]
        sums += z
    return {"z": sums, "dtable": d_table, "dexperts": d_experts, "dgates": d_gates}


def compare(got, want, what):
    scale = max(map(abs, want))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if not abs(a - b) <= TOLERANCE * scale:
            sys.exit(f"{what}: element {i} is {a}; the dense formulation gives {b}")


def main():
    plan = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        names = ["W", "tokens", "labels", "z", "dtable", "dexperts", "dgates", "counts"]
        run(plan, f"--dump-dir={folder}/dump", "--dump-step=1", *(f"--dump=micro:{each}" for each in names))
        dump = Dump(folder / "dump")
        dropped = sizes = 0
        for rank in range(2):
            for microbatch in range(2):
                def read(each):
                    return dump[each, rank, microbatch]
                ids = read("tokens")
                want = dense(read("W"), ids, read("labels"))
                for each, values in want.items():
                    compare(read(each), values, f"{each} of rank {rank}, microbatch {microbatch}")
                dropped += sum(id >= SLOTS * RUNS for id in ids)
                sizes = max(sizes, len(set(read("counts"))))
        if dropped == 0 or sizes < 2:
            sys.exit("the batches show nothing: all choices are of runs, or all runs are of one size")
        plain = metrics(plan, folder, "plain.jsonl")
        for seed in range(1, 4):
            if metrics(plan, folder, "seed.jsonl", f"--seed-schedule={seed}") != plain:
                sys.exit(f"schedule {seed} trains otherwise")
        if metrics(plan, folder, "check.jsonl", "--check", "--seed-schedule=1") != plain:
            sys.exit("--check trains otherwise")
        print(f"dense: {len(plain)} steps")


if __name__ == "__main__":
    main()
