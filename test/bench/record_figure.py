#!/usr/bin/env python3
"""Writes a figure of a benchmark page: one row of docs/benchmarks/PAGE.json. Replaces the row of the same case and
hardware, or adds one. test/tools/overview_pages.py then writes the tables.

    record_figure.py PAGE CASE HARDWARE --plan=P --metrics=M [--log=L] [--peer=FILE --peer-is=TEXT] [--last=N]
    record_figure.py PAGE CASE HARDWARE --measure=TEXT --ours=N [--peer-value=N --peer-is=TEXT]

P is the plan that ran, M its metrics and L its output: they give the speed of a rank (the median of the second half of
the steps, or of the last N), the predicted one, and the device memory in use. FILE is what a program of the peers
writes with --out: its speed and memory.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ("case", "measure", "ours", "gib", "predicted", "peer", "peer_is", "peer_gib", "ratio", "hardware", "date", "commit")


def of_run(plan, metrics, log, last):
    """The speed of a rank in tokens/s, the predicted speed, and the GiB of device memory in use."""
    head = "".join(line for line in plan.read_text().splitlines(True) if line.startswith("//"))
    ranks = int(re.search(r"// mesh .*; (\d+) ranks", head).group(1))
    steps = [json.loads(line)["tokens_per_s"] for line in metrics.read_text().splitlines() if '"tokens_per_s"' in line]
    row = {"ours": round(statistics.median(steps[-(last or (len(steps) + 1) // 2):]) / ranks)}
    if found := re.search(r"predicted step: .*, ([\d,]+) tokens/s per device", head):
        row["predicted"] = int(found.group(1).replace(",", ""))
    if log and (found := re.search(r"device memory: ([\d.]+) of [\d.]+ MiB in use", log.read_text(errors="replace"))):
        row["gib"] = round(float(found.group(1)) / 1024, 1)
    return row


def of_peer(path):
    peer = json.loads(path.read_text())
    return {"peer": round(peer["tokens_per_s_gpu"]), "peer_gib": round(peer["memory_gib"]["device_used"], 1)}


def write(path, row):
    """The file has a line for each row."""
    rows = json.loads(path.read_text()) if path.exists() else []
    same = [i for i, old in enumerate(rows) if (old["case"], old["hardware"]) == (row["case"], row["hardware"])]
    if same:
        rows[same[0]] = row
    else:
        rows.append(row)
    text = ",\n".join("  " + json.dumps(each, ensure_ascii=False) for each in rows)
    part = path.with_suffix(".part")
    part.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("page", "case", "hardware"):
        parser.add_argument(name)
    parser.add_argument("--measure", default="tokens/s per GPU")
    for name in ("plan", "metrics", "log", "peer"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    for name in ("ours", "peer-value"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--peer-is")
    parser.add_argument("--last", type=int)
    parser.add_argument("--commit", help="of the program that ran; by default, that of this tree")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    args = parser.parse_args()
    if (args.ours is None) == (args.plan is None or args.metrics is None):
        parser.error("a figure comes from --ours, or from --plan and --metrics")
    row = {"case": args.case, "measure": args.measure, "hardware": args.hardware, "peer_is": args.peer_is}
    row |= {"ours": args.ours} if args.ours is not None else of_run(args.plan, args.metrics, args.log, args.last)
    row |= of_peer(args.peer) if args.peer else {"peer": args.peer_value}
    if row.get("peer"):
        row["ratio"] = round(row["ours"] / row["peer"], 3)
    row["date"] = datetime.date.today().isoformat()
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    row["commit"] = args.commit or subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    write(args.folder / f"{args.page}.json", {name: row[name] for name in NAMES if row.get(name) is not None})


if __name__ == "__main__":
    main()
