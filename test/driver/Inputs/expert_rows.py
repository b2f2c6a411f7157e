#!/usr/bin/env python3
"""What is predicted of rows of experts that may not be there, of three plans of a recipe. Needs only Python.

    expert_rows.py RECIPE [--set=path=value ...]

Capacity for twice an even share of rows must not change the operations, and no step may become longer. Without
`count-rows`, all rows of the capacity are exchanged, which must take longer.
"""

import re
import subprocess
import sys

UNITS = 0.002  # of all operations: units and additions of rows that are not there, relative


def predicted(*options):
    """TFLOP of a step, milliseconds of it, and seconds of communication."""
    command = ["shardc", "dump-plan", *sys.argv[1:], *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    flops = re.search(r"^// a step of a rank: ([\d,.]+) TFLOP, of which the model's are ([\d,.]+);", done.stdout, re.MULTILINE)
    step = re.search(r"^  derived\.predicted\.step_ms = (\S+)$", done.stdout, re.MULTILINE)
    moved = re.search(r"^// predicted step: .*; communication takes ([\d.]+) (m?s), ", done.stdout, re.MULTILINE)
    all_flops, of_model = (float(number.replace(",", "")) for number in flops.groups())
    if not all_flops >= of_model:
        sys.exit(f"{options}: {flops[0]}")
    return all_flops, float(step[1]), float(moved[1]) * (1e-3 if moved[2] == "ms" else 1)


plain = predicted()
less_capacity = predicted("--set=model.moe_expert_rank_capacity_factor=2")
all_rows = predicted("--disable-pass=count-rows")
print(f"TFLOP, ms and s of communication: {plain}, with less room {less_capacity}, with all rows {all_rows}")
if abs(less_capacity[0] / plain[0] - 1) > UNITS or less_capacity[1] > plain[1] or abs(less_capacity[2] / plain[2] - 1) > UNITS:
    sys.exit("room for twice an even share changes what is expected")
if all_rows[1] < 1.5 * plain[1] or all_rows[2] < 4 * plain[2]:
    sys.exit("rows that are not there are expected to take no time")
