#!/usr/bin/env python3
"""Makes the values that shardc's training in fp8 is compared with, by PyTorch's float8 types, autograd and AdamW.

Needs numpy and torch; nothing of shardc runs here. Writes values/CASE_fp8.json: 50 steps of each variant, as losses and norms.
Products of layers take factors of 8 bits, each with one scale from its largest magnitude, as Transformer Engine's current scaling
has them; all else is bf16. Two runs of each variant round bf16 at other places (see maker/model.py), and both are right: what is
allowed follows from the distance between them.

    make_fp8.py [CASE...]
"""

import dataclasses
import json
import pathlib
import sys

import torch

from maker import cases, dataset, model
from maker.training import Run

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 50
COMPARED = 10  # steps that are compared one by one; rounding drives those after them apart
MARGIN = 4.0
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclasses.dataclass(frozen=True)
class Variant:
    gradients: torch.dtype = E5M2
    weight_gradients: bool = True
    bf16_layers: int = 0  # first ones, and last ones, that stay as they are


VARIANTS = {
    "hybrid": Variant(),
    "e4m3": Variant(gradients=E4M3),
    "bf16_wgrad": Variant(weight_gradients=False),
    "bf16_ends": Variant(bf16_layers=1),
}


def quantised(x, dtype):
    """The numbers of x in `dtype`, in fp32, and by what products of them are multiplied."""
    largest = torch.finfo(dtype).max
    amax = x.abs().max()
    by = largest / amax if amax > 0 else torch.tensor(1.0)
    return (x * by).clamp(-largest, largest).to(dtype).float(), 1 / by


class Product(torch.autograd.Function):
    """x·wᵀ of fp32 operands that hold bf16 numbers."""

    @staticmethod
    def forward(ctx, x, w, variant):
        (a, a_scale), (b, b_scale) = quantised(x, E4M3), quantised(w, E4M3)
        ctx.save_for_backward(x, a, a_scale, b, b_scale)
        ctx.variant = variant
        return (a @ b.T) * (a_scale * b_scale)

    @staticmethod
    def backward(ctx, dy):
        x, a, a_scale, b, b_scale = ctx.saved_tensors
        g, g_scale = quantised(dy, ctx.variant.gradients)
        dx = (g @ b) * (g_scale * b_scale)
        rows, columns = dy.flatten(0, -2), x.flatten(0, -2)
        if ctx.variant.weight_gradients:
            dw = (g.flatten(0, -2).T @ a.flatten(0, -2)) * (g_scale * a_scale)
        else:
            dw = rows.T @ columns
        return dx, dw, None


class Numerics(model.Numerics):
    def __init__(self, case, variant, native):
        super().__init__(torch.bfloat16, native)
        ends = variant.bf16_layers
        self.variant = variant
        self.layers = {f"decoder.layers.{i}." for i in range(ends, case.num_layers - ends)}

    def linear(self, x, p, name):
        if not any(name.startswith(layer) for layer in self.layers):
            return super().linear(x, p, name)
        y = Product.apply(self.up(x), self.up(p[f"{name}.weight"]), self.variant)
        b = p.get(f"{name}.bias")
        return self.down(y if b is None else y + self.up(b))


def train(case, order, variant, native):
    run = Run(case, order, torch.bfloat16, native=native)
    if variant:
        run.numerics = Numerics(case, variant, native)
    return run.train()


def relative(values, reference):
    return max(abs(a - b) / abs(b) for a, b in zip(values, reference))


def mean_distance(values, reference):
    return sum(abs(a - b) / abs(b) for a, b in zip(values, reference)) / len(values)


def main(names):
    docs = dataset.documents()
    for case in (cases.GPT2, cases.LLAMA):
        if names and case.name not in names:
            continue
        case = dataclasses.replace(case, steps=STEPS)
        order = dataset.SampleOrder(docs, case.steps * case.global_batch, case.seq_length, case.data_seed)
        bf16 = train(case, order, None, False)
        values = {"case": case.name, "torch": torch.__version__, "compared_steps": COMPARED, "bf16": bf16.loss, "variants": {}}
        for name, variant in VARIANTS.items():
            if 2 * variant.bf16_layers >= case.num_layers:
                continue
            run, other = (train(case, order, variant, native) for native in (False, True))
            apart = {key: relative(getattr(other, key)[:COMPARED], getattr(run, key)[:COMPARED]) for key in ("loss", "grad_norm")}
            values["variants"][name] = {
                "tolerance": {key: MARGIN * value for key, value in apart.items()},
                "from_bf16": MARGIN * mean_distance(run.loss, bf16.loss),
                "loss": run.loss,
                "grad_norm": run.grad_norm,
            }
            print(case.name, name, "apart", apart, "from bf16", mean_distance(run.loss, bf16.loss), "last", run.loss[-1], bf16.loss[-1], flush=True)
        (HERE / "values" / f"{case.name}_fp8.json").write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
