#!/usr/bin/env python3
"""Trains golden cases with shardc and compares them with their values. Needs nothing but Python.

    run_golden.py CASE... [--ranks N...] [--strategies S...] [--bf16 WIRE...] [--tensor N] [--fp32-residual] [--weights]

Every case runs at every number of ranks under every strategy. With --bf16 it trains in bf16 and
gradients travel as WIRE, fp32 or bf16. With --tensor, N ranks divide each layer, with
sequence parallelism. With --fp32-residual the residual stream of bf16 is in fp32.
With --weights, the weights after the last step are compared too, by their norms and sums.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile

import check_golden

HERE = pathlib.Path(__file__).resolve().parent
FSDP = ["dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"]
STRATEGIES = {
    "no_shard": [],
    "optim": ["ddp.use_distributed_optimizer=true"],
    "optim_grads": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads"],
    "optim_grads_params": [*FSDP, "ddp.data_parallel_sharding_strategy=optim_grads_params"],
}
WIRES = {
    None: [],
    "fp32": ["mixed_precision=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=true"],
    "bf16": ["mixed_precision=bf16_mixed", "mixed_precision.grad_reduce_in_fp32=false"],
}


def call(*command):
    # Recipes name their data relative to this folder.
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout}{done.stderr}"
        )


def weights_of(plan, steps, folder):
    """Runs the plan once more, and leaves the weights behind its last step in the folder."""
    cells = "master" if "cell @master." in plan.read_text() else "w"
    call("shardc-run", plan, f"--dump-dir={folder}", f"--dump-step={steps}", f"--dump=update:@{cells}.*")
    return folder


def run(case, ranks, strategy, wire, tensor, is_wide, has_weights):
    """Trains and compares; the exit status of the comparison."""
    settings = [f"cluster.gpus_per_node={ranks}", *STRATEGIES[strategy], *WIRES[wire]]
    if tensor > 1:  # the vocabulary is padded as it is on one rank
        settings += [
            f"model.tensor_model_parallel_size={tensor}",
            "model.sequence_parallel=true",
            f"model.make_vocab_size_divisible_by={128 // tensor}",
        ]
    print(
        f"{case}, ranks {ranks}, {strategy}{f', bf16 with {wire} gradients' if wire else ''}"
        f"{f', layers cut among {tensor}' if tensor > 1 else ''}",
        flush=True,
    )
    settings += ["model.fp32_residual_connection=true"] * is_wide
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plan, metrics, gradients = (folder / part for part in ("job.plan", "metrics", "gradients"))
        call("shardc", "dump-plan", f"{case}.recipe", "-o", plan, *(f"--set={s}" for s in settings))
        call(
            "shardc-run",
            plan,
            f"--metrics={metrics}",
            f"--dump-dir={gradients}",
            "--dump=update:g.*",
        )
        precision = "bf16" if wire else "fp32"
        values = HERE / "values" / f"{case}.json"
        steps = len(metrics.read_text().splitlines())
        weights = weights_of(plan, steps, folder / "weights") if has_weights else None
        return check_golden.compare(values, metrics, gradients, precision, weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["no_shard"])
    parser.add_argument("--bf16", nargs="+", choices=("fp32", "bf16"), default=[None])
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--fp32-residual", action="store_true")
    parser.add_argument("--weights", action="store_true")
    args = parser.parse_args()
    combinations = itertools.product(
        args.cases, args.ranks, args.strategies, args.bf16, [args.tensor], [args.fp32_residual], [args.weights]
    )
    return max([run(*combination) for combination in combinations])


if __name__ == "__main__":
    sys.exit(main())
