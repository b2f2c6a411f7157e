#!/usr/bin/env python3
"""Makes the values that shardc's training is compared with, by PyTorch's autograd and AdamW.

Needs numpy and torch, transformers for the cases that name a module of it, lion-pytorch for those of Lion, and bitsandbytes for those in 4 bits; nothing of shardc runs here. Writes data/ (an indexed dataset and the order
of its samples) and values/ (one JSON file and one .npz of step 1's gradients for each case).

    make_golden.py [CASE...]            write
    make_golden.py --check [CASE...]    compute again and compare with what is written
"""

import argparse
import importlib.metadata
import json
import math
import pathlib
import platform
import sys

import numpy as np
import torch

from maker import cases, dataset, model
from maker.training import Run

HERE = pathlib.Path(__file__).resolve().parent
COMPARED_STEPS = 10
TOLERANCE = {"loss": 1e-5, "grad_norm": 1e-5, "gradient": 1e-4, "gradient_of_model": 1e-7}
# What bf16 is allowed beyond the largest distance that any of the bf16 runs here has from fp64.
BF16_MARGIN = 4.0


def relative(values, reference, steps=None):
    return max(abs(a - b) / abs(b) for a, b in list(zip(values, reference))[:steps])


def norm(gradients):
    return math.sqrt(sum(float(np.square(g).sum()) for g in gradients.values()))


def gradient_distance(gradients, reference):
    """The largest relative distance of a parameter's gradient, except for gradients that nearly vanish."""
    whole = norm(reference)
    distances = []
    for name, g in reference.items():
        size = np.linalg.norm(g)
        if size > 1e-7 * whole:
            distances.append(float(np.linalg.norm(gradients[name] - g) / size))
    return max(distances)


def round_up(value):
    """To one significant digit, upwards."""
    exponent = math.floor(math.log10(value))
    return float(f"{math.ceil(value / 10**exponent)}e{exponent}")


def distances(run, reference):
    return {
        "loss": relative(run.loss, reference.loss, COMPARED_STEPS),
        "grad_norm": relative(run.grad_norm, reference.grad_norm, COMPARED_STEPS),
        "gradient": gradient_distance(run.first_gradients, reference.first_gradients),
    }


def bf16_values(case, order, reference):
    """Runs in bf16 with their distances from fp64, and the tolerance that follows from them."""
    runs = []
    for ranks, wire, native in [
        (1, "fp32", True),
        (1, "bf16", True),
        (2, "bf16", True),
    ] if case.module else [
        (1, "fp32", False),
        (1, "fp32", True),
        (1, "bf16", False),
        (2, "bf16", False),
        (2, "bf16", True),
    ]:
        run = Run(
            case, order, torch.bfloat16, ranks, torch.bfloat16 if wire == "bf16" else None, native
        ).train()
        runs.append(
            {
                "ranks": ranks,
                "wire": wire,
                "ops": "native" if native else "rounded",
                "distance": distances(run, reference),
                "loss": run.loss,
                "grad_norm": run.grad_norm,
            }
        )
    widest = {
        key: max(run["distance"][key] for run in runs) for key in ("loss", "grad_norm", "gradient")
    }
    return {
        "tolerance": {key: round_up(BF16_MARGIN * value) for key, value in widest.items()},
        "runs": runs,
    }


def transformers_version():
    import transformers

    return transformers.__version__


def case_values(case, docs):
    """The JSON object of a case, and its gradients."""
    order = dataset.SampleOrder(
        docs, case.steps * case.global_batch, case.seq_length, case.data_seed
    )
    initial = model.initial_values(case)
    reference = Run(case, order, torch.float64).train()
    single = Run(case, order, torch.float32).train()
    two_ranks = Run(case, order, torch.float64, ranks=2).train()
    recorded = distances(single, reference)
    # The same sums in another order; fp32 stays well inside of what shardc is allowed.
    assert relative(two_ranks.loss, reference.loss) < 1e-12, case.name
    assert relative(two_ranks.grad_norm, reference.grad_norm) < 1e-10, case.name
    assert max(recorded.values()) < 2e-6, (case.name, recorded)
    values = {
        "case": case.name,
        "made_with": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            **({"transformers": transformers_version()} if case.module else {}),
            **({"bitsandbytes": importlib.metadata.version("bitsandbytes")} if case.quantized else {}),
            **({"lion-pytorch": importlib.metadata.version("lion-pytorch")} if case.lion else {}),
        },
        "per_token": case.per_token,
        "compared_steps": COMPARED_STEPS,
        "tolerance": TOLERANCE,
        "tokens": reference.tokens,
        "lr": reference.lr,
        "loss": reference.loss,
        "grad_norm": reference.grad_norm,
        **({"further": reference.further} if case.predictions else {}),
        "fp32": {"distance": recorded, "loss": single.loss, "grad_norm": single.grad_norm},
        "initial_parameters": {
            n: {
                "shape": list(v.shape),
                "norm": float(np.linalg.norm(v.astype(np.float64).ravel())),
                "first": [float(x) for x in v.ravel()[:4]],
            }
            for n, v in initial.items()
        },
        "final_parameters": reference.parameter_sums(),
    }
    if case in cases.BF16_CASES:
        values["bf16"] = bf16_values(case, order, reference)
    return values, {n: g.astype(np.float32) for n, g in reference.first_gradients.items()}


def write_data(docs):
    folder = HERE / "data"
    folder.mkdir(exist_ok=True)
    dataset.write_indexed(folder / "tokens", docs)
    dataset.write_jsonl(folder / "documents.jsonl")
    case = cases.GPT2
    count = case.steps * case.global_batch
    described = [
        dataset.SampleOrder(docs, count, case.seq_length, seed).describe(count)
        for seed in (case.data_seed, case.seed)
    ]
    (folder / "order.json").write_text(
        "["
        + ",\n".join(
            "{"
            + ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in order.items())
            + "}"
            for order in described
        )
        + "]\n"
    )
    for order in described:
        print(
            f"seed {order['seed']}: {len(docs)} documents, {sum(map(len, docs))} tokens,"
            f" {order['epochs']} epochs"
        )
        for row in order["first_samples"]:
            print("  sample", *row)


def write_case(values, gradients):
    folder = HERE / "values"
    folder.mkdir(exist_ok=True)
    name = values["case"]
    (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    np.savez_compressed(folder / f"{name}.npz", **gradients)


def check_case(values, gradients):
    """Whether the file has the values that this machine computes, except for the last digits."""
    written = json.loads((HERE / "values" / f"{values['case']}.json").read_text())
    assert values["tokens"] == written["tokens"], values["case"]
    for key in ("loss", "grad_norm"):
        assert relative(values[key], written[key]) < 1e-9, (values["case"], key)
    stored = np.load(HERE / "values" / f"{values['case']}.npz")
    assert set(stored.files) == set(gradients), values["case"]
    assert gradient_distance({n: stored[n] for n in gradients}, gradients) < 1e-6, values["case"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with what is written")
    parser.add_argument("cases", nargs="*", help="all if none is named")
    args = parser.parse_args()
    check = args.check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    docs = dataset.documents()
    if not check and not args.cases:
        write_data(docs)
    for case in cases.CASES:
        if args.cases and case.name not in args.cases:
            continue
        values, gradients = case_values(case, docs)
        (check_case if check else write_case)(values, gradients)
        bf16 = f", bf16 allowed {values['bf16']['tolerance']}" if "bf16" in values else ""
        print(
            f"{case.name}: loss {values['loss'][0]:.4f} -> {values['loss'][-1]:.4f}, fp32 off by"
            f" {values['fp32']['distance']}{bf16}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
