#!/usr/bin/env python3
"""Pipeline schedules of PyTorch. Needs torch.

    torch_schedules.py            writes torch_schedules.txt: the orders of torch's classes, as its files say them
    torch_schedules.py FILE ...   loads schedules that shardc wrote with torch's runtime, which lowers them, and prints the rows
                                  and the actions of each

A schedule in torch_schedules.txt begins with a line `# class stages chunks microbatches format`; a row for each rank follows.
"""

import collections
import csv
import os
import sys
import tempfile

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

FOLDER = os.path.dirname(os.path.abspath(__file__))


class Chunk:
    """What the constructors of schedules read of a chunk of layers, which torch calls a stage."""

    def __init__(self, index, count, ranks):
        self.stage_index, self.num_stages, self.group_rank, self.group_size = index, count, 0, ranks
        self.is_first, self.is_last, self.has_backward, self.submod, self.device = index == 0, index == count - 1, True, None, "cpu"


def make(kind, ranks, chunks, microbatches, style):
    count = ranks * chunks
    rank_of = generate_stage_to_rank_mapping(ranks, count, style)
    return kind([Chunk(i, count, ranks) for i in range(count) if rank_of[i] == 0], microbatches, loss_fn=lambda a, b: 0)


def cases():
    for ranks in (2, 4):
        for microbatches in (ranks, 2 * ranks, 2 * ranks + 1):
            if microbatches % ranks == 0:
                yield schedules.ScheduleInterleaved1F1B, ranks, 2, microbatches, "loop"
                yield schedules.ScheduleInterleavedZeroBubble, ranks, 3, microbatches, "loop"
            yield schedules.ScheduleLoopedBFS, ranks, 2, microbatches, "loop"
            yield schedules.ScheduleZBVZeroBubble, ranks, 2, microbatches, "v"
            if microbatches >= 2 * ranks:
                yield schedules.ScheduleDualPipeV, ranks, 2, microbatches, "v"


def write():
    with tempfile.TemporaryDirectory() as folder, open(f"{FOLDER}/torch_schedules.txt", "w", newline="\n") as out:
        path = f"{folder}/a.csv"
        out.write(f"# written by torch_schedules.py with torch {torch.__version__.split('+')[0]} (BSD-3-Clause)\n")
        for kind, ranks, chunks, microbatches, style in cases():
            made = make(kind, ranks, chunks, microbatches, style)
            for form in ("compute_only", "compute_comms"):
                made._dump_csv(path, format=form)
                rows = [[cell for cell in row if cell.strip()] for row in csv.reader(open(path, newline=""))]
                out.write(f"# {kind.__name__} {ranks} {chunks} {microbatches} {form}\n")
                out.writelines(",".join(row) + "\n" for row in rows)


def load(path):
    rows = list(csv.reader(open(path, newline="")))
    cells = [cell for row in rows for cell in row]
    chunks = 1 + max(int(digits(part)) for cell in cells for part in cell.strip("(").split(";"))
    microbatches = 1 + max(int(cell.rsplit(kind, 1)[1]) for cell in cells for kind in "FBIW" if cell.count(kind) == 1 and "(" not in cell)
    own = sorted({int(digits(part)) for cell in rows[0] for part in cell.strip("(").split(";")})
    runtime = schedules._PipelineScheduleRuntime([Chunk(i, chunks, len(rows)) for i in own], microbatches, loss_fn=lambda a, b: 0)
    runtime._load_csv(path)
    kinds = collections.Counter(action.computation_type.name for row in runtime.pipeline_order_with_comms.values() for action in row)
    print(f"{os.path.basename(path)}: {len(rows)} rows, {sum(kinds.values())} actions: {dict(sorted(kinds.items()))}")


def digits(text):
    return text[:next(i for i, c in enumerate(text) if not c.isdigit())]


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write()
    for path in sys.argv[1:]:
        load(path)
