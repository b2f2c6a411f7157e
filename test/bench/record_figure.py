#!/usr/bin/env python3
"""Writes a figure of a benchmark page: one row of docs/benchmarks/PAGE.json. Replaces the row of the same case and
hardware and peer, or adds one. test/tools/overview_pages.py then writes the tables.

    record_figure.py PAGE CASE HARDWARE --plan=P --metrics=M [--log=L] [--peer=FILE --peer-is=TEXT] [--last=N]
    record_figure.py PAGE CASE HARDWARE --measure=TEXT --ours=N [--peer-value=N --peer-is=TEXT] [--more NAME=VALUE ...]
    record_figure.py PAGE CASE HARDWARE --benchmark=FILE --name=NAME

P is the plan that ran, M its metrics and L its output: they give the speed of a rank (the median of the second half of
the steps, or of the last N), the predicted one, and the device memory in use. --peer is what a program of the peers
writes with --out: its speed and memory. --benchmark is what bench_compile or bench_check writes with
--benchmark_out: the CPU time of NAME in ms, and those of its parts. Other scripts of this folder call `add_argument` and `record`.

Fields of a row: `case` names what is measured in full, `measure` the unit of `ours` and `peer`; `gib` and `peer_gib` are
the device memory in use; `commit` is the measured version, or `recorded` the commit that recorded the figure if the
version was not noted. `goal` was set before. `more` has further columns of the page's table. Written by hand and kept
when a row is replaced: `goal`, `table` (the page's table that has the row) and `front` (README.md has the row too).
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("case", "measure", "ours", "gib", "predicted", "peer", "peer_is", "peer_gib", "ratio", "goal", "more", "hardware", "date",
         "commit", "recorded", "table", "front")
KEPT = ("goal", "table", "front")


def predicted_speed(head):
    """The predicted tokens/s of a rank, from the comments at the head of a plan; None if it has none."""
    found = re.search(r"^// predicted step: .*, ([\d,]+) tokens/s per device", head, re.MULTILINE)
    return int(found.group(1).replace(",", "")) if found else None


def of_run(plan, metrics, log, last):
    """The speed of a rank in tokens/s, the predicted speed, and the GiB of device memory in use."""
    head = "".join(line for line in plan.read_text().splitlines(True) if line.startswith("//"))
    ranks = int(re.search(r"// mesh .*; (\d+) ranks", head).group(1))
    steps = [json.loads(line)["tokens_per_s"] for line in metrics.read_text().splitlines() if '"tokens_per_s"' in line]
    row = {"ours": round(statistics.median(steps[-(last or (len(steps) + 1) // 2):]) / ranks), "predicted": predicted_speed(head)}
    if log and (found := re.search(r"device memory: ([\d.]+) of [\d.]+ MiB in use", log.read_text(errors="replace"))):
        row["gib"] = round(float(found.group(1)) / 1024, 1)
    return row


def of_peer(path):
    peer = json.loads(path.read_text())
    return {"peer": round(peer["tokens_per_s_gpu"]), "peer_gib": round(peer["memory_gib"]["device_used"], 1)}


def of_benchmark(path, name):
    """The CPU time in ms of one case of Google Benchmark; of a case `X whole`, also those of its parts `X ...`."""
    unit_ms = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}
    times = {run["name"]: f"{run['cpu_time'] * unit_ms[run['time_unit']]:.1f}" for run in json.loads(path.read_text())["benchmarks"]}
    prefix = name.removesuffix("whole")
    parts = {other.removeprefix(prefix): time for other, time in times.items() if prefix != name and other.startswith(prefix) and other != name}
    return {"ours": float(times[name]), "more": parts}


def key_of(row):
    return tuple(row.get(name) for name in ("case", "measure", "hardware", "peer_is"))


def write(path, row):
    """The file has a line for each row."""
    rows = json.loads(path.read_text()) if path.exists() else []
    same = [i for i, old in enumerate(rows) if key_of(old) == key_of(row)]
    if same:
        rows[same[0]] = {name: rows[same[0]][name] for name in KEPT if name in rows[same[0]]} | row
    else:
        rows.append(row)
    sorted_rows = [{name: each[name] for name in NAMES if each.get(name) is not None} for each in rows]
    text = ",\n".join("  " + json.dumps(each, ensure_ascii=False) for each in sorted_rows)
    part = path.with_suffix(".part")
    part.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    part.replace(path)


def commit_here():
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def record(path, **row):
    """Writes a row with today's date and, unless given, the ratio and the commit of this tree."""
    path = pathlib.Path(path)
    if row.get("peer"):
        row.setdefault("ratio", round(row["ours"] / row["peer"], 3))
    write(path, row | {"date": datetime.date.today().isoformat(), "commit": row.get("commit") or commit_here()})


def add_argument(parser):
    """For scripts that measure: the file of figures to write to, and the hardware that its rows name."""
    parser.add_argument("--record", nargs=2, metavar=("FILE", "HARDWARE"), help="write figures to a file of docs/benchmarks")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("page", "case", "hardware"):
        parser.add_argument(name)
    parser.add_argument("--measure", help="default: tokens/s per GPU, or ms with --benchmark")
    for name in ("plan", "metrics", "log", "peer", "benchmark"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    for name in ("ours", "peer-value"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--peer-is")
    parser.add_argument("--name", help="the case of --benchmark")
    parser.add_argument("--more", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--last", type=int)
    parser.add_argument("--commit", help="of the program that ran; by default, that of this tree")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args()
    if [args.ours is None, args.plan is None or args.metrics is None, args.benchmark is None].count(False) != 1:
        parser.error("a figure comes from --ours, from --plan and --metrics, or from --benchmark")
    row = {"measure": args.measure or ("ms" if args.benchmark else "tokens/s per GPU"), "peer": args.peer_value, "commit": args.commit}
    if args.ours is not None:
        row["ours"] = args.ours
    else:
        row |= of_benchmark(args.benchmark, args.name) if args.benchmark else of_run(args.plan, args.metrics, args.log, args.last)
    row |= of_peer(args.peer) if args.peer else {}
    row["more"] = row.get("more", {}) | dict(each.split("=", 1) for each in args.more) or None
    record(args.folder / f"{args.page}.json", case=args.case, hardware=args.hardware, peer_is=args.peer_is, **row)


if __name__ == "__main__":
    main()
