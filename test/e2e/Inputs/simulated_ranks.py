"""Trains a recipe on many simulated ranks and on one, and compares the losses and the memory.

    simulated_ranks.py RECIPE --ranks=N --peak=MIB [--set path=value ...]

Both runs have the same batch: the single rank processes N microbatches. The recipe must be in fp32. Without sanitizers,
which need memory themselves, the peak of resident memory of the run on N ranks is compared with --peak, after
subtracting the memory of the program and its libraries (CUDA's are large).
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

TOLERANCE = 1e-5
ONE_RANK = ["cluster.nodes=1", "cluster.gpus_per_node=1", "ddp.num_distributed_optimizer_instances=1",
            "ddp.outer_dp_sharding_strategy=no_shard", "model.tensor_model_parallel_size=1", "model.sequence_parallel=false",
            "model.pipeline_model_parallel_size=1", "model.context_parallel_size=1"]


def peak_of_children():
    """Resident memory of the largest process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def losses(recipe, settings, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "metrics.jsonl"
        command = ["shardc", "run", recipe, *(f"--set={setting}" for setting in settings), f"--metrics={path}", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return [record["loss"] for record in records if "loss" in record]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--peak", type=int, required=True, help="MiB")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()

    subprocess.run(["shardc-run", "--version"], capture_output=True, check=True)
    program = peak_of_children()
    many = losses(options.recipe, options.set, f"--simulate-ranks={options.ranks}")
    peak = peak_of_children() - program
    one = losses(options.recipe, [*options.set, *ONE_RANK], "--simulate-ranks=1")

    if len(many) != len(one) or len(many) < 2 or many[0] == many[-1]:
        sys.exit(f"the losses of {options.ranks} ranks and of one are not those of several steps: {many} and {one}")
    worst = max(abs(a - b) / b for a, b in zip(many, one))
    if not worst <= TOLERANCE:
        sys.exit(f"the losses of {options.ranks} ranks and of one differ by {worst:.1e}: {many} and {one}")
    if peak > options.peak and not os.environ.get("SHARDC_SANITIZE"):
        sys.exit(f"{options.ranks} ranks take {peak:.0f} MiB, {options.peak} is the limit")
    print(f"{options.ranks} ranks and one: {len(many)} losses within {TOLERANCE}; peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
