#!/usr/bin/env python3
"""Exchanges files of pipeline schedules with PyTorch.

usage: schedules_torch.py BIN RECIPE

BIN has shardc. The files that torch's classes write, with and without transfers, are read and written again: the passes
are the same. The files of named schedules are loaded by torch's runtime, which lowers them. Exits with 77 without torch.
"""

import csv
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "unit" / "passes" / "golden" / "torch_schedules.py"
NAMES = ("interleaved", "looped_bfs", "zb_v", "dual_pipe_v", "overlap")
EXPERTS = ["model.num_moe_experts=2", "model.expert_model_parallel_size=2", "model.moe_token_dispatcher_type=alltoall",
           "mixed_precision=bf16_mixed", "model.overlap_moe_expert_parallel_comm=true"]


def written(shardc, recipe, stages, chunks, microbatches, *settings):
    sizes = [f"model.num_layers={stages * chunks}", f"model.pipeline_model_parallel_size={stages}",
             f"model.virtual_pipeline_model_parallel_size={chunks}", f"cluster.gpus_per_node={stages}",
             "train.micro_batch_size=1", f"train.global_batch_size={microbatches}", *settings]
    command = [shardc, "dump-plan", recipe, "--emit=schedule", *(f"--set={each}" for each in sizes)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def cells(text):
    return [[cell for cell in row if cell.strip()] for row in csv.reader(text.splitlines())]


def main():
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not there")
        sys.exit(77)
    spec = importlib.util.spec_from_file_location("torch_schedules", SCRIPT)
    torch_schedules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(torch_schedules)
    shardc, recipe = pathlib.Path(sys.argv[1]) / "shardc", sys.argv[2]
    read = loaded = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.csv"
        for kind, stages, chunks, microbatches, style in torch_schedules.cases():
            made = torch_schedules.make(kind, stages, chunks, microbatches, style)
            made._dump_csv(path, format="compute_only")
            expected = cells(path.read_text())
            for form in ("compute_only", "compute_comms"):
                made._dump_csv(path, format=form)
                found = written(shardc, recipe, stages, chunks, microbatches, f'model.pipeline_schedule_csv="{path}"')
                if cells(found) != expected:
                    sys.exit(f"{kind.__name__}, {stages} ranks, {microbatches} microbatches, {form}:\n{found}{expected}")
                read += 1
        for name in NAMES:
            for stages, microbatches in ((2, 4), (4, 8), (4, 12)):
                settings = [f"model.pipeline_schedule={name}"]
                if name == "overlap":
                    settings = [*EXPERTS, f"cluster.gpus_per_node={2 * stages}", f"train.global_batch_size={2 * microbatches}"]
                path.write_text(written(shardc, recipe, stages, 2, microbatches, *settings))
                torch_schedules.load(path)
                loaded += 1
    print(f"torch {torch_schedules.torch.__version__}: {read} files read, {loaded} files loaded and lowered by its runtime")


if __name__ == "__main__":
    main()
