"""What changed_plans.py and drawn_jobs.py share: runs of programs beside each other, packs, and processes that divide cases.

Both programs are written from the pages of docs/ alone, and import nothing of the other programs in this folder.
They need Python 3.10, `shardc`, `shardc-run` and the folder of recipes, and no network.
"""

import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

# Fields of a line of metrics that depend on the clock (docs/troubleshooting.md).
TIMED = {"tokens_per_s", "model_tflops", "mfu", "host_ms", "host_wait_ms"}


class Ran:
    """What a run left: its status, its output, the lines of its metrics without times, and the files that it saved."""

    def __init__(self, status, out, lines, files, expired):
        self.status, self.out, self.lines, self.files, self.expired = status, out, lines, files, expired

    def began(self):
        return bool(self.lines) or re.search(r"^step \d+/", self.out, re.M) is not None

    def error(self):
        """The id and the first line of the first error."""
        line = next((line for line in self.out.splitlines() if "error:" in line), "")
        return (re.findall(r"\[([a-z][a-z0-9]*-[a-z0-9-]+)\]$", self.out, re.M) or [""])[0], line[:300]


def call(command, folder, limit=120, variables=None):
    """Runs a program in a folder; returns its status, output, and whether it was killed after `limit` seconds."""
    settings = dict(os.environ, **(variables or {}))
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MASTER_ADDR"):
        settings.pop(name, None)
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT, env=settings, start_new_session=True)
        expired = False
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            expired = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return process.returncode, out.read(4_000_000).decode("utf-8", "replace"), expired


def metrics_of(path):
    lines = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                values = json.loads(line)
            except ValueError:
                values = {"damaged": line}
            lines.append({name: value for name, value in values.items() if name not in TIMED})
    return lines


def files_of(folder):
    """The SHA-256 of each file below a folder."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".shardc_lock"}


def run_plan(program, plan, folder, saves="ck", limit=120, options=(), variables=None):
    """Runs a plan in a folder; what it saves is in the folder `saves` below."""
    metrics = Path(folder) / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    status, out, expired = call([program, plan, "--metrics", metrics, "--workers", "1", *options], folder, limit,
                                variables)
    saved = Path(folder) / saves
    return Ran(status, out, metrics_of(metrics), files_of(saved) if saved.exists() else {}, expired)


def write_index(path, dtype, lengths, documents, size):
    """The index of an indexed dataset (docs/data.md)."""
    starts = [sum(lengths[:i]) * size for i in range(len(lengths))]
    path.write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, dtype, len(lengths), len(documents)) +
                     struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(starts)}q", *starts) +
                     struct.pack(f"<{len(documents)}q", *documents))


def write_packs(prefix, length, vocabulary, packs, seed):
    """Packs of rows with random tokens (docs/fine-tuning.md): prefix.bin, .idx, .mask.bin, .mask.idx and .json."""
    draw = random.Random(seed)
    rows, masks, documents = [], [], [0]
    for _ in range(packs):
        left = length
        for _ in range(draw.randint(1, 4)):
            places = draw.randint(3, max(3, left // 2))
            if places > left:
                break
            left -= places
            rows.append([draw.randrange(vocabulary) for _ in range(places + 1)])
            answer = draw.randint(1, places)
            masks.append([0] * (places + 1 - answer) + [1] * answer)
        documents.append(len(rows))
    prefix = Path(prefix)
    lengths = [len(row) for row in rows]
    tokens = b"".join(struct.pack(f"<{len(row)}H", *row) for row in rows)
    mask = b"".join(bytes(row) for row in masks)
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens)
    prefix.with_name(prefix.name + ".mask.bin").write_bytes(mask)
    write_index(prefix.with_name(prefix.name + ".idx"), 8, lengths, documents, 2)
    write_index(prefix.with_name(prefix.name + ".mask.idx"), 1, lengths, documents, 1)
    prefix.with_name(prefix.name + ".json").write_text(json.dumps({
        "packs_format": 1, "vocab_size": vocabulary, "length": length, "pad_token": 0, "rows": len(rows),
        "packs": packs, "tokens": sum(lengths), "packing": "balanced"}))


def write_indexed(prefix, vocabulary, documents, seed):
    """An indexed dataset with documents of random tokens."""
    draw = random.Random(seed)
    rows = [[draw.randrange(vocabulary) for _ in range(draw.randint(5, 40))] for _ in range(documents)]
    prefix = Path(prefix)
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(struct.pack(f"<{len(row)}H", *row) for row in rows))
    write_index(prefix.with_name(prefix.name + ".idx"), 8, [len(row) for row in rows], list(range(documents + 1)), 2)


def _work(number, workers, count, deadline, case, prepare, folder, log):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    state = prepare(folder) if prepare else None
    with open(log, "w", encoding="utf-8") as out:
        for index in range(number, count, workers):
            if time.monotonic() > deadline:
                break
            place = Path(folder) / f"case{number}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            try:
                result = case(state, index, place)
            except Exception as problem:  # a fault of this program is a result too, with its case
                result = {"verdict": "broken", "why": f"{type(problem).__name__}: {problem}"}
            out.write(json.dumps({"number": index, **result}) + "\n")
            out.flush()
            shutil.rmtree(place, ignore_errors=True)


def divide(count, jobs, seconds, case, prepare, folder):
    """Runs case(state, index, folder) for each index below `count` in `jobs` processes, until the time is over.

    `prepare(folder)` makes the state of each process. Returns the results in the order of their indices.
    """
    deadline = time.monotonic() + seconds
    logs = [Path(folder) / f"results{number}.jsonl" for number in range(jobs)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_work, args=(number, jobs, count, deadline, case, prepare, folder, logs[number]))
                 for number in range(jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    results = []
    for log in logs:
        if log.exists():
            results += [json.loads(line) for line in log.read_text().splitlines()]
    return sorted(results, key=lambda result: result["number"])


def print_table(results, kinds, verdicts):
    """Prints how many results of each kind have each verdict."""
    rows = {}
    for result in results:
        for kind in kinds(result):
            row = rows.setdefault(kind, {})
            row[result["verdict"]] = row.get(result["verdict"], 0) + 1
    wide = max([len(kind) for kind in rows] + [4])
    print(f"{'kind':{wide}} " + " ".join(f"{verdict:>10}" for verdict in verdicts))
    for kind in sorted(rows):
        print(f"{kind:{wide}} " + " ".join(f"{rows[kind].get(verdict, 0):10}" for verdict in verdicts))
    totals = {verdict: sum(result["verdict"] == verdict for result in results) for verdict in verdicts}
    print(f"{'results':{wide}} " + " ".join(f"{totals[verdict]:10}" for verdict in verdicts))
    return rows, totals
