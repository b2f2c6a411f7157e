"""Compares the data of a report's page with what other commands say of the same plan, and prints parts of it.

    report_data.py page PAGE PLAN_JSON TRACE_JSON    of one plan for a GPU
    report_data.py show PAGE WORD...                 values at paths such as plans.0.run.beside
"""

import collections
import json
import re
import sys

ELEMENT = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)
ARENAS = ["state", "work", "sym", "host"]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def data_of(path):
    text = read(path)
    found = ELEMENT.findall(text)
    assert len(found) == 1, f"{len(found)} elements with data"
    assert "<" not in found[0] and found[0].isascii(), "the data are not escaped"
    assert "http://www.w3.org/2000/svg" in text and len(re.findall(r"https?://", text)) == 1, "it names a place to load from"
    return json.loads(found[0])


def pattern_of(name):
    return re.sub(r"(?<![A-Za-z]{2})(?<![A-Za-z]{2}\d)\d+", "*", name)


def check_memory(page, role):
    bytes_of = {row["purpose"]: {"cells": row["kept"], "transient": row["peak"]} for row in page["memory"]["purposes"]}
    plan = {name: row for name, row in role["summary"]["bytes"].items() if any(row.values())}
    assert bytes_of == plan, f"{bytes_of}, plan {plan}"
    assert page["memory"]["arenas"] == {a: n for a, n in role["arenas"].items() if n}
    holders = collections.Counter()
    for row in page["memory"]["holders"]:
        holders[row["purpose"], row["kept"]] += row["bytes"]
    for name, row in plan.items():
        assert (holders[name, True], holders[name, False]) == (row["cells"], row["transient"]), f"holders of {name}"
    print(f"memory: {len(plan)} purposes, {len(page['memory']['holders'])} holders")


def check_map(page, role):
    shown = page["map"]
    names = {value["name"] for segment in role["segments"] for value in segment["values"]} | {c["name"] for c in role["cells"]}
    segments = {segment["name"]: len(segment["ops"]) for segment in role["segments"]}
    for segment in shown["segments"]:
        assert segment["end"] - segment["begin"] == segments[segment["name"]], segment
    ends = shown["segments"][-1]["end"]
    taken = collections.defaultdict(list)
    for arena, offset, size, begin, end, _, is_kept, name, _ in shown["rects"]:
        assert shown["names"][name] in names, shown["names"][name]
        assert 0 <= begin <= end <= ends and 0 <= offset and offset + size <= role["arenas"][ARENAS[arena]], (begin, end, offset)
        if not is_kept:
            taken[arena].append((begin, end, offset, offset + size, name))
    for rects in taken.values():
        for i, a in enumerate(rects):
            for b in rects[:i]:
                isBeside = a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]
                assert isBeside, f"{shown['names'][a[4]]} {a} and {shown['names'][b[4]]} {b} are at the same place"
    print(f"map: segments {' '.join(s['name'] for s in shown['segments'])}; nothing lies on another")


def check_sharding(page, plan):
    for rows, whole in ((page["blocks"], plan["blocks"]), (page["params"], plan["params"])):
        count = collections.Counter(pattern_of(row["name"]) for row in whole)
        shown = collections.Counter()
        for row in rows:
            shown[row["name"]] += row["count"]
        assert shown == count, f"{shown}, plan {count}"
    assert sum(row["count"] * row["elements"] for row in page["blocks"]) == sum(row["numel"] for row in plan["blocks"])
    print(f"sharding: {len(plan['blocks'])} blocks in {len(page['blocks'])} rows, {len(plan['params'])} parameters")


def check_step(page, trace):
    events = [event for event in json.loads(read(trace))["traceEvents"] if event["ph"] == "X"]
    ops = collections.defaultdict(lambda: [0, 0.0])
    for event in events:
        row = ops[event["args"]["work"]]
        row[0] += 1
        row[1] += event["dur"]
    shown = collections.defaultdict(lambda: [0, 0.0])
    for row in page["ops"]:
        shown[row["op"]][0] += row["count"]
        shown[row["op"]][1] += row["s"] * 1e6
    assert set(ops) == set(shown), set(ops) ^ set(shown)
    for op, (count, us) in ops.items():
        assert shown[op][0] == count and abs(shown[op][1] - us) < 0.01 * count, f"{op}: {shown[op]}, trace {count}, {us}"
    timeline = page["timelines"][0]
    assert timeline["pieces"] == len(events) == sum(block[5] for block in timeline["blocks"])
    kernels = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["args"]["work"] in kernels_of(page))
    transfers = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["args"]["work"] not in kernels_of(page)]
    bare = length(kernels + transfers) - length(kernels)
    exposed = sum(stretch[3] for stretch in timeline["exposed"])
    assert abs(exposed - bare) < 0.2 * len(timeline["exposed"]) + 1, f"exposed {exposed} us, trace {bare}"
    assert abs(sum(row["exposed_s"] for row in page["ops"]) * 1e6 - bare) < 1
    assert 0 < bare and abs(page["predicted"]["exposed_s"] * 1e6 - bare) < 1, f"{page['predicted']} of the step, trace {bare}"
    print(f"step: {len(events)} ops, {len(timeline['blocks'])} blocks, each {timeline['grain']}")


def kernels_of(page):
    return {row["op"] for row in page["ops"] if not row["transfer"]}


def length(intervals):
    total = end = 0
    for first, last in sorted(intervals):
        total += max(last - max(first, end), 0)
        end = max(end, last)
    return total


def check_page(path, plan_json, trace):
    page, plan = data_of(path)["plans"][0], json.loads(read(plan_json))
    role = next(role for role in plan["roles"] if role["name"] == page["memory"]["role"])
    check_memory(page, role)
    check_map(page, role)
    check_sharding(page, plan)
    check_step(page, trace)


def show(path, words):
    data = data_of(path)
    for word in words:
        value = data
        for part in word.split("."):
            value = value[int(part) if isinstance(value, list) else part]
        print(f"{word}: {json.dumps(value)}")


if sys.argv[1] == "page":
    check_page(*sys.argv[2:])
else:
    show(sys.argv[2], sys.argv[3:])
