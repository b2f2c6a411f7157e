"""Linear layers of PyTorch in fp8, by recipe. torch_model.py uses these in place of F.linear."""

import torch
import torch.nn.functional as F
from maker.float8 import E4M3, E5M2, DelayedScales, block_quantised


class Tensorwise:
    """By torchao: e4m3 forward, e5m2 gradients, one scale per tensor from its current amax."""

    def __init__(self, emulate):
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear
        self.linear, self.config, self.modules = Float8Linear, Float8LinearConfig(emulate=emulate), {}

    def __call__(self, x, name, weight, bias):
        if name not in self.modules:
            plain = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta", dtype=weight.dtype)
            self.modules[name] = self.linear.from_float(plain, self.config)
        given = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return torch.func.functional_call(self.modules[name], given, (x,))

    def end_step(self):
        pass


def product(a, a_scale, b, b_scale, dtype, bias=None, fast=False):
    """a·bᵀ + bias of 8-bit matrices. Without a GPU, it multiplies the values that they represent. `fast`: accumulates
    with fewer bits, as in Transformer Engine's forward pass."""
    if a.is_cuda:
        return torch._scaled_mm(a.contiguous(), b.contiguous().t(), a_scale, b_scale, bias=bias, out_dtype=dtype,
                                use_fast_accum=fast)
    y = (a.float() @ b.float().t()) * (a_scale * b_scale)
    return (y if bias is None else y + bias.float()).to(dtype)


class DelayedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, name, recipe):
        rows = x.flatten(0, -2)
        a, a_scale = recipe.scales.quantised(rows, E4M3, (name, "x"))
        b, b_scale = recipe.scales.quantised(weight, E4M3, (name, "weight"))
        ctx.save_for_backward(a, a_scale, b, b_scale)
        ctx.name, ctx.recipe, ctx.has_bias = name, recipe, bias is not None
        return product(a, a_scale, b, b_scale, x.dtype, bias, fast=True).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        a, a_scale, b, b_scale = ctx.saved_tensors
        rows = dy.flatten(0, -2)
        g, g_scale = ctx.recipe.scales.quantised(rows, ctx.recipe.gradients, (ctx.name, "dy"))
        dx = product(g, g_scale, b.t(), b_scale, dy.dtype).view(*dy.shape[:-1], -1)
        dw = product(g.t(), g_scale, a.t(), a_scale, dy.dtype)
        return dx, dw, rows.sum(0) if ctx.has_bias else None, None, None


class Delayed:
    """As Transformer Engine's DelayedScaling: one scale per tensor, from the amaxes of earlier steps."""

    def __init__(self, gradients, length, most_recent, margin):
        self.gradients, self.scales = gradients, DelayedScales(length, most_recent, margin)

    def __call__(self, x, name, weight, bias):
        return DelayedLinear.apply(x, weight, bias, name, self)

    def end_step(self):
        self.scales.update()


class BlockwiseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, gradients):
        ctx.save_for_backward(x, weight)
        ctx.gradients, ctx.has_bias = gradients, bias is not None
        numbers = block_quantised(x.flatten(0, -2), E4M3, "blockwise").to(x.dtype)
        y = F.linear(numbers, block_quantised(weight, E4M3, "blockwise", True).to(x.dtype), bias)
        return y.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows, columns = dy.flatten(0, -2), x.flatten(0, -2).t()

        def take(t, dtype, is_weight=False):
            return block_quantised(t, dtype, "blockwise", is_weight).to(dy.dtype)

        dx = F.linear(take(rows, ctx.gradients), take(weight.t(), E4M3, True)).view(x.shape)
        dw = F.linear(take(rows.t(), ctx.gradients), take(columns, E4M3))
        return dx, dw, rows.sum(0) if ctx.has_bias else None, None


class Blockwise:
    """As Transformer Engine's Float8BlockScaling with scales that are powers of two. bf16 represents all values of the
    blocks exactly, so bf16 products equal those of fp8."""

    def __init__(self, gradients):
        self.gradients = gradients

    def __call__(self, x, name, weight, bias):
        return BlockwiseLinear.apply(x, weight, bias, self.gradients)

    def end_step(self):
        pass


def gradients_of(fp8_format):
    return E5M2 if fp8_format == "hybrid" else E4M3
