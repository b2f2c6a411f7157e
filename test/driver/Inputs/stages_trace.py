"""Prints the contents of the trace of two stages: the name of each rank, its streams and passes with their
microbatches, and the times of transfers."""

import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
named = [event for event in events if event["ph"] == "M"]
work = [event for event in events if event["ph"] == "X"]
streams = {event["tid"]: event["args"]["name"] for event in named if event["name"] == "thread_name"}
for process in (event for event in named if event["name"] == "process_name"):
    own = [event for event in work if event["pid"] == process["pid"]]
    passes = {}
    for event in own:
        passes.setdefault(event["name"].split(":")[0], set()).add(event["args"].get("microbatch"))
    counted = (f"{name} of {' '.join(map(str, sorted(of)))}" for name, of in passes.items() if None not in of)
    print(f"{process['args']['name']}: {' '.join(sorted({streams[event['tid']] for event in own}))}; {', '.join(counted)}")


def times(rank, stream):
    return [(event["ts"], event["dur"]) for event in work if event["pid"] == rank and streams[event["tid"]] == stream]


forward, backward = times(0, "send_forward"), times(1, "send_backward")
assert forward == times(1, "recv_forward"), "a transfer forward at two times"
assert backward == times(0, "recv_backward"), "a transfer backward at two times"
print(f"{len(forward)} transfers forward and {len(backward)} backward, each at one time on both stages")
