"""Plans with losses in chunks of fewer rows than recipes may set, and with chunks for losses for which recipes may not
set them."""

import re
import sys


def write_plan(call, compile_plan, rows, plan):
    """Compiles a recipe with chunks of a given number of rows. `compile_plan` is the command without an output; `call`
    runs a command and returns its output."""
    every = call([*compile_plan, "--print-after-all"])
    passes = re.findall(r"^// after (\S+)", every, re.MULTILINE)
    text = call([*compile_plan, "--print-after=fuse-loss-head", "-o", plan]).split("\n", 1)[1]
    text, found = re.subn(r"chunk_rows = \d+", f"chunk_rows = {rows}", text)
    if found == 0:
        sys.exit("no loss is in chunks")
    fused = plan.with_suffix(".fused.plan")
    fused.write_text(re.sub(r" hash \w+", "", text, count=1))
    call(["shardc-opt", *(f"--{each}" for each in passes[passes.index("fuse-loss-head") + 1:]), fused, "-o", plan])
    if " = join " not in plan.read_text():
        sys.exit("no chunks are joined")
