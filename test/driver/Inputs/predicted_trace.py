"""predicted_trace.py TRACE PLAN: compares the end of a predicted trace with the plan's predicted step time. Prints the
overlaps, and how often the first product of each segment runs."""

import collections
import json
import re
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
work = [event for event in events if event["ph"] == "X"]
names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
step_us = 1e3 * float(re.search(r"derived.predicted.step_ms = ([0-9.]+)", open(sys.argv[2]).read())[1])
end = max(event["ts"] + event["dur"] for event in work)
print("ends with the step" if abs(end - step_us) < 0.01 * step_us else f"ends at {end} us of {step_us}")
by_stream = collections.defaultdict(list)
for event in work:
    by_stream[names[event["tid"]]].append((event["ts"], event["ts"] + event["dur"]))
for stream, spans in sorted(by_stream.items()):
    spans.sort()
    apart = all(a[1] <= b[0] + 0.002 for a, b in zip(spans, spans[1:]))
    print(f"{stream}: {len(spans)} spans, {'one after the other' if apart else 'at once'}")
hidden = sum(any(a < d and c < b for a, b in by_stream["compute"]) for c, d in by_stream["gather"])
print(f"{hidden} gathers beside kernels")
print(sum(event["name"].startswith("micro: batch.load") for event in work), "microbatches")
