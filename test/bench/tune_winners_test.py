#!/usr/bin/env python3
"""Tests tune_winners.py and prediction_runs.py with small plans, and a program in place of shardc-run.

    tune_winners_test.py SHARDC
"""

import contextlib
import io
import json
import pathlib
import re
import stat
import sys
import tempfile

import prediction_runs
import tune_winners

# It writes a metrics file of four steps; the more recomputation a plan has, the more tokens it claims.
RUN = """#!/usr/bin/env python3
import re, sys
text = open(sys.argv[2]).read()
recompute = (re.findall(r'model.recompute_granularity = "(\\w+)"', text) or ["none"])[0]
steps = re.search(r"train.train_iters = (\\d+)", text)[1]
assert steps == "12", steps
rate = {"none": 100, "selective": 200, "full": 400}[recompute]
with open(sys.argv[1].removeprefix("--metrics="), "w") as metrics:
    metrics.write('{"tokens": 64, "tokens_per_s": 1}\\n{"tokens": 64}\\n')
    metrics.write(f'{{"tokens": 64, "tokens_per_s": {rate}}}\\n' * 2)
"""


def printed(words, program=tune_winners):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program.main(words)
    return out.getvalue()


def test_predictions(shardc, scratch, run, failing):
    plans = {f"m{micro}": ("test/driver/Inputs/tune.recipe", None, prediction_runs.batch(micro)) for micro in (1, 2, 4)}
    prediction_runs.SETS = {"fitted": {"m1": plans["m1"], "m2": plans["m2"]}, "others": {"m4": plans["m4"]}}
    folder = scratch / "predictions"
    prepared = printed(["prepare", str(folder), "--gpu=h100", f"--shardc={shardc}"], prediction_runs)
    assert re.match(r"m1: [0-9.]+ ms, 12 steps\nm2: ", prepared), prepared
    # Each plan is in one of two parts.
    parts = [printed(["measure", str(folder), f"--shardc-run={run}", f"--share={part}/2"], prediction_runs) for part in (0, 1)]
    assert all(parts) and sorted("".join(parts).splitlines()) == ["m1: 640.0 ms", "m2: 640.0 ms", "m4: 640.0 ms"], parts
    said = printed(["table", str(folder)], prediction_runs)
    assert re.search(r"\| m2 \| [0-9.]+ \| 640.0 \| 0.\d{3} \|\n\n2 plans: median \d+.\d%, largest \d+.\d% \(m1\)", said), said
    assert "| others |" in said and "1 plans" in said, said
    printed(["measure", str(folder), f"--shardc-run={failing}", "--set=others", f"--results={scratch}/failed"], prediction_runs)
    said = printed(["table", str(folder), str(scratch / "failed")], prediction_runs)
    assert "| shardc-run: error: no GPU | |" in said and "| m1 |" in said and "| not run | |" in said, said


def main(shardc):
    tune_winners.PROBLEMS = {"tiny": ("test/driver/Inputs/tune.recipe", [], ["--allow=fp8"])}
    with tempfile.TemporaryDirectory() as scratch:
        folder, run = pathlib.Path(scratch) / "plans", pathlib.Path(scratch) / "run"
        run.write_text(RUN)
        run.chmod(run.stat().st_mode | stat.S_IXUSR)
        prepared = printed(["prepare", str(folder), "--gpu=h100", "--others=4", f"--shardc={shardc}"])
        assert re.match(r"tiny: \d+ layouts fit, 5 are compiled; the winner has mbs 4, recompute none", prepared), prepared
        rows = json.loads((folder / "manifest.json").read_text())["problems"][0]["rows"]
        layouts = [json.dumps(row["layout"]) for row in rows]
        assert len(set(layouts)) == 5, layouts
        assert all(row["predicted"] <= rows[0]["predicted"] for row in rows), rows
        # Runs each plan once, and the winner and the best of the others twice.
        measured = printed(["measure", str(folder), f"--shardc-run={run}"])
        runs = [line for line in measured.splitlines() if re.match(r"tiny-\d.plan.xz: \d+ tokens/s", line)]
        assert len(runs) == 7, measured
        best = max({"none": 100, "full": 400}.get(row["layout"]["recompute"], 200) for row in rows)
        assert best > 100, layouts
        last = measured.splitlines()[-3]
        assert re.match(rf"\| tiny \| \d+ \| 5 \| mbs 4, recompute none.* \| 100 \| {best} \(.*\) \| {100 / best:.3f} \|", last), measured
        # What was measured is not repeated.
        again = printed(["measure", str(folder), f"--shardc-run={run}"])
        assert again == printed(["table", str(folder)]), again
        # A run that fails is reported.
        failing = pathlib.Path(scratch) / "failing"
        failing.write_text("#!/bin/sh\necho 'shardc-run: error: no GPU' >&2\nexit 2\n")
        failing.chmod(0o755)
        said = printed(["measure", str(folder), f"--shardc-run={failing}", f"--results={scratch}/failed.jsonl"])
        assert "| tiny |" in said and "shardc-run: error: no GPU" in said, said
        test_predictions(shardc, pathlib.Path(scratch), run, failing)


if __name__ == "__main__":
    main(sys.argv[1])
