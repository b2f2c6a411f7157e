#!/usr/bin/env python3
"""Makes the values that shardc's training in fp8 is compared with, by PyTorch's float8 types, autograd and AdamW.

Needs numpy, torch and transformers; nothing of shardc runs here. Writes values/CASE_fp8.json: 50 steps of each variant, as losses and norms.
Products of layers take operands of 8 bits, each with one scale from its amax, as Transformer Engine's current scaling
has them, or from those of steps before, as its delayed scaling, which is updated after each step here; all else is bf16. Two
runs of each variant round bf16 at other places (see maker/model.py), and both are right: what is allowed follows from the
distance between them. Latent attention and experts are those of transformers, whose two ways of attention are the two runs.

    make_fp8.py [CASE...]
"""

import dataclasses
import functools
import json
import pathlib
import sys

import torch

from maker import cases, dataset, model, transformer
from maker.float8 import E4M3, E5M2, DelayedScales, block_quantised, quantised
from maker.training import Run

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 50
COMPARED = 10  # steps that are compared one by one; rounding drives those after them apart
MARGIN = 4.0


@dataclasses.dataclass(frozen=True)
class Variant:
    gradients: torch.dtype = E5M2
    weight_gradients: bool = True
    bf16_layers: int = 0  # first ones, and last ones, that stay as they are
    blocks: str = ""  # "blockwise" or "mxfp8"; otherwise each tensor has one scale
    delayed: tuple = ()  # length of the history, whether the latest step counts alone, margin
    weights_now: bool = False  # weights have scales of their magnitudes now, whatever those of other tensors are
    hidden: int = 48  # mxfp8 takes extents that 32 divides


VARIANTS = {
    "hybrid": Variant(),
    "e4m3": Variant(gradients=E4M3),
    "bf16_wgrad": Variant(weight_gradients=False),
    "bf16_ends": Variant(bf16_layers=1),
    "delayed": Variant(delayed=(16, False, 0)),
    "delayed_recent": Variant(delayed=(1, True, 1)),
    "gathered_delayed": Variant(delayed=(16, False, 0), weights_now=True),
    "blockwise": Variant(blocks="blockwise"),
    "mxfp8": Variant(blocks="mxfp8", gradients=E4M3, hidden=64),
}
# Of adapters, which have no products of 8 bits and thus no weight gradients of them. The rows of queries, keys and
# values have another order in peft, and more than one block of mxfp8.
OF_ADAPTERS = ("hybrid", "delayed", "gathered_delayed", "blockwise")


class BlockProduct(torch.autograd.Function):
    """The same with one scale per block along the contracted dimension."""

    @staticmethod
    def forward(ctx, x, w, variant):
        ctx.save_for_backward(x, w)
        ctx.variant = variant
        rows = block_quantised(x.flatten(0, -2), E4M3, variant.blocks)
        return (rows @ block_quantised(w, E4M3, variant.blocks, True).T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        variant, rows = ctx.variant, dy.flatten(0, -2)
        dx = block_quantised(rows, variant.gradients, variant.blocks) @ block_quantised(w.T, E4M3, variant.blocks, True).T
        dw = block_quantised(rows.T, variant.gradients, variant.blocks) @ block_quantised(x.flatten(0, -2).T, E4M3, variant.blocks).T
        return dx.view(x.shape), dw, None


class Product(torch.autograd.Function):
    """x·wᵀ of fp32 operands that hold bf16 numbers."""

    @staticmethod
    def forward(ctx, x, w, variant, scales, name):
        def take(x, dtype, tensor):
            is_delayed = scales and not (tensor == "w" and variant.weights_now)
            q, scale = scales.quantised(x, dtype, (name, tensor)) if is_delayed else quantised(x, dtype)
            return q.float(), scale

        (a, a_scale), (b, b_scale) = take(x, E4M3, "x"), take(w, E4M3, "w")
        ctx.save_for_backward(x, a, a_scale, b, b_scale)
        ctx.variant, ctx.take = variant, take
        return (a @ b.T) * (a_scale * b_scale)

    @staticmethod
    def backward(ctx, dy):
        x, a, a_scale, b, b_scale = ctx.saved_tensors
        g, g_scale = ctx.take(dy, ctx.variant.gradients, "dy")
        dx = (g @ b) * (g_scale * b_scale)
        rows, columns = dy.flatten(0, -2), x.flatten(0, -2)
        if ctx.variant.weight_gradients:
            dw = (g.flatten(0, -2).T @ a.flatten(0, -2)) * (g_scale * a_scale)
        else:
            dw = rows.T @ columns
        return dx, dw, None, None, None


class Numerics(model.Numerics):
    def __init__(self, case, variant, native):
        super().__init__(torch.bfloat16, native)
        ends = variant.bf16_layers
        self.variant = variant
        self.scales = DelayedScales(*variant.delayed) if variant.delayed else None
        self.layers = {f"decoder.layers.{i}." for i in range(ends, case.num_layers - ends)}
        self.layers |= {f"mtp.layers.{i}." for i in range(case.predictions)}  # upstream counts them nowhere else

    def linear(self, x, p, name):
        if not any(name.startswith(layer) for layer in self.layers):
            return super().linear(x, p, name)
        y = self.product(x, p[f"{name}.weight"], name)
        b = p.get(f"{name}.bias")
        return self.down(y if b is None else y + self.up(b))

    def see(self, w, name):
        if self.scales:
            self.scales.quantised(self.up(w.detach()), E4M3, (name, "w"))

    def product(self, x, w, name):
        operands = self.up(x), self.up(w), self.variant
        return BlockProduct.apply(*operands) if self.variant.blocks else Product.apply(*operands, self.scales, name)


def join(numerics, name, parts):
    """Makes modules that read the same input one product of `numerics`, which the first of them computes."""
    def first(x):
        joined = torch.cat([part.weight for part in parts])
        left[:] = numerics.down(numerics.product(x, joined, name)).split([len(part.weight) for part in parts], dim=-1)
        return left.pop(0)

    left = []
    for part in parts:
        part.forward = lambda x: left.pop(0)
    parts[0].forward = first


def base_in_8_bits(case, numerics, module):
    """The frozen layers below adapters of the package peft take products of `numerics`; adapters do not."""
    for i, layer in enumerate(module.base_model.model.model.layers):
        for ours, theirs in transformer.MODULES.items():
            if ours in dict(case.adapters):
                join(numerics, f"{i}.{ours}", [layer.get_submodule(name).base_layer for name in theirs])
    return module


def module_in_8_bits(case, numerics):
    """A model of transformers whose layers take products of `numerics`. Gate and up are one product, as in Megatron-Core."""
    module = transformer.new_module(case, numerics.dtype, "eager" if numerics.native else "sdpa")
    if case.adapters:
        return base_in_8_bits(case, numerics, module)

    def linear(layer, name, x):
        return numerics.down(numerics.product(x, layer.weight, name))

    def mlp(layer, name, x):
        joined = torch.cat([layer.gate_proj.weight, layer.up_proj.weight])
        gate, up = numerics.down(numerics.product(x, joined, name)).chunk(2, dim=-1)
        return layer.down_proj(layer.act_fn(gate) * up)

    def experts(layer, name, x, chosen, weights):
        """The rows of each expert in the order of tokens; their weights are between the products, as in Megatron-Core."""
        total = torch.zeros_like(x, dtype=torch.float32)
        for e in range(case.experts):
            rows, places = torch.where(chosen == e)
            if len(rows) == 0:  # weights are quantised all the same
                numerics.see(layer.gate_up_proj[e], f"{name}.{e}.fc1")
                numerics.see(layer.down_proj[e], f"{name}.{e}.fc2")
                continue
            first = numerics.down(numerics.product(x[rows], layer.gate_up_proj[e], f"{name}.{e}.fc1"))
            gate, up = first.chunk(2, dim=-1)
            act = numerics.down(numerics.up(layer.act_fn(gate) * up) * weights[rows, places, None])
            second = numerics.down(numerics.product(act, layer.down_proj[e], f"{name}.{e}.fc2"))
            total = total.index_add(0, rows, numerics.up(second))
        return numerics.down(total)

    ends = numerics.variant.bf16_layers
    for i in range(ends, case.num_layers - ends):
        for name, layer in module.model.layers[i].named_modules():
            if isinstance(layer, torch.nn.Linear):
                layer.forward = functools.partial(linear, layer, f"{i}.{name}")
            elif name == "mlp.experts":
                layer.forward = functools.partial(experts, layer, f"{i}.{name}")
            elif name == "mlp" and not case.experts:
                layer.forward = functools.partial(mlp, layer, f"{i}.{name}")
    return module


class ScaledRun(Run):
    def update(self, number):
        super().update(number)
        if getattr(self.numerics, "scales", None):
            self.numerics.scales.update()


def train(case, order, variant, native):
    run = ScaledRun(case, order, torch.bfloat16, native=native)
    if variant:
        run.numerics = Numerics(case, variant, native)
        if case.module:
            run.numerics.module = module_in_8_bits(case, run.numerics)
    return run.train()


def relative(values, reference):
    return max(abs(a - b) / abs(b) for a, b in zip(values, reference))


def mean_distance(values, reference):
    return sum(abs(a - b) / abs(b) for a, b in zip(values, reference)) / len(values)


def main(names):
    docs = dataset.documents()
    for case in (cases.GPT2, cases.LLAMA, cases.LATENT_ALIGNED, cases.MIXTRAL, cases.FURTHER, cases.LLAMA_LORA):
        if names and case.name not in names:
            continue
        case = dataclasses.replace(case, steps=STEPS)
        order = dataset.SampleOrder(docs, case.steps * case.global_batch, case.seq_length, case.data_seed)
        values = {"case": case.name, "torch": torch.__version__, "compared_steps": COMPARED, "variants": {}}
        for name, variant in VARIANTS.items():
            if 2 * variant.bf16_layers >= case.num_layers or (case.adapters and name not in OF_ADAPTERS):
                continue
            case = dataclasses.replace(case, hidden=variant.hidden, head=variant.hidden // case.heads)
            bf16 = train(case, order, None, False)
            run, other = (train(case, order, variant, native) for native in (False, True))
            apart = {key: relative(getattr(other, key)[:COMPARED], getattr(run, key)[:COMPARED]) for key in ("loss", "grad_norm")}
            values["variants"][name] = {
                "tolerance": {key: MARGIN * value for key, value in apart.items()},
                "from_bf16": MARGIN * mean_distance(run.loss, bf16.loss),
                "bf16": bf16.loss,
                "loss": run.loss,
                "grad_norm": run.grad_norm,
            }
            print(case.name, name, "apart", apart, "from bf16", mean_distance(run.loss, bf16.loss), "last", run.loss[-1], bf16.loss[-1], flush=True)
        (HERE / "values" / f"{case.name}_fp8.json").write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
