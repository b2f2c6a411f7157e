"""Prints the contents of a trace: ranks, how often the update of each rank began, streams, and the first product."""

import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
work = [event for event in events if event["ph"] == "X"]
names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
ranks = {event["pid"] for event in work}
steps = {sum(event["pid"] == rank and "step.begin" in event["name"] for event in work) for rank in ranks}
assert len(steps) == 1, f"steps by rank {steps}"
assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in work)
streams = sorted({names[event["tid"]] for event in work} & {"compute", "gather", "reduce"})
print(f"{len(ranks)} ranks, {steps.pop()} steps, streams {' '.join(streams)}")
print(next(event["name"] for event in work if "matmul %l0.qkv" in event["name"]))
