#!/usr/bin/env python3
"""Makes the values that shardc's training in fp16 is compared with, by PyTorch's autograd, AdamW and GradScaler.

Needs numpy and torch; nothing of shardc runs here. Writes values/CASE_fp16.json: 200 steps in which the loss scale doubles
every few steps, so that it overflows again and again.

    make_fp16.py [CASE...]
"""

import dataclasses
import json
import math
import pathlib
import sys

import torch

from maker import cases, dataset, model
from maker.training import Run, learning_rate

HERE = pathlib.Path(__file__).resolve().parent
STEPS, FIRST_SCALE, WINDOW = 200, 2.0**32, 8
MARGIN = 4.0  # of the distance between ops that compute in fp32 and in fp64
SETTLED = 40  # steps whose losses are compared; those after them go apart further with each step


class Rounded(torch.autograd.Function):
    """A number of fp16 in the type in which ops compute; its gradient is rounded as well, after all that reads it has added to it."""

    @staticmethod
    def forward(ctx, x):
        return x.to(torch.float16).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(torch.float16).to(gradient.dtype)


class RoundedForward(Rounded):
    """The same without its gradient, which the op before it reads before it is rounded."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Numerics(model.Numerics):
    """Rounds each op's result to fp16; `inner` is what ops compute in.

    Weights are numbers of fp16 whose gradients are not rounded, as with Megatron's fused accumulation into fp32. Nor are
    logits, which a fused head never writes, and the gradient of GELU's result, which the product before it turns into that
    of its operand.
    """

    def __init__(self, inner):
        super().__init__(torch.float16)
        self.inner = inner

    def down(self, x):
        return Rounded.apply(x)

    def activation(self, x, case):
        if case.family != "gpt":
            return super().activation(x, case)
        return RoundedForward.apply(torch.nn.functional.gelu(x))


def losses(case, p, numerics, tokens, labels, mask, positions, starts):
    allowed = model.allowed_positions(starts)
    x = numerics.down(p["embedding.word_embeddings.weight"][tokens])
    if case.family == "gpt":
        x = numerics.down(x + numerics.down(p["embedding.position_embeddings.weight"][positions]))
    for i in range(case.num_layers):
        layer = f"decoder.layers.{i}."
        y = numerics.norm(x, p, f"{layer}self_attention.linear_qkv.layer_norm_", case)
        x = numerics.down(x + model.attend(y, p, layer, case, numerics, allowed))
        y = numerics.norm(x, p, f"{layer}mlp.linear_fc1.layer_norm_", case)
        y = numerics.activation(numerics.linear(y, p, f"{layer}mlp.linear_fc1"), case)
        x = numerics.down(x + numerics.linear(y, p, f"{layer}mlp.linear_fc2"))
    x = numerics.norm(x, p, "decoder.final_layernorm.", case)
    head = p["embedding.word_embeddings.weight" if case.tied else "output_layer.weight"]
    return model.masked_losses(case, numerics, x @ head.T, labels, mask)


class ScaledRun(Run):
    """A run whose loss is scaled by torch.amp.GradScaler, which also decides about updates."""

    def __init__(self, case, order, inner):
        super().__init__(case, order, inner)
        self.numerics = Numerics(inner)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=WINDOW)
        self.applied = 0
        self.scale, self.skipped = [], []

    def microbatch(self, first):
        # The scale is a factor of the loss where its gradient starts.
        scale = self.scaler.scale(torch.ones(())).item()
        case, numerics = self.case, self.numerics
        weights = {
            n: numerics.down(p.detach()).requires_grad_()
            for n, p in self.masters.items()
        }
        batch = map(torch.from_numpy, dataset.batch(self.order, first, case.micro_batch, case))
        tokens, labels, mask, positions, starts = batch
        mask = mask.to(numerics.inner)
        total = losses(case, weights, numerics, tokens, labels, mask, positions, starts).sum()
        count = mask.sum()
        (total / count / (case.global_batch // case.micro_batch) * scale).backward()
        return total.item(), count.item(), {n: w.grad for n, w in weights.items()}

    def update(self, number):
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.masters.values(), self.case.clip, foreach=False)
        self.grad_norm.append(norm.item())
        self.lr.append(learning_rate(self.case, self.applied))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr[-1]
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scale.append(self.scaler.get_scale())
        self.skipped.append(int(self.scale[-1] < before))
        self.applied += 1 - self.skipped[-1]


def relative(values, reference):
    return max(abs(a - b) / abs(b) for a, b in list(zip(values, reference))[:SETTLED])


def norms(run):
    return [n for n, skipped in zip(run.grad_norm, run.skipped) if not skipped]


def round_up(value):
    exponent = math.floor(math.log10(value))
    return float(f"{math.ceil(value / 10**exponent)}e{exponent}")


def main():
    torch.set_num_threads(1)
    docs = dataset.documents()
    for case in (cases.GPT2, cases.LLAMA):
        if sys.argv[1:] and case.name not in sys.argv[1:]:
            continue
        case = dataclasses.replace(case, steps=STEPS)
        order = dataset.SampleOrder(docs, STEPS * case.global_batch, case.seq_length, case.data_seed)
        single, double = (ScaledRun(case, order, inner).train() for inner in (torch.float32, torch.float64))
        same = single.scale == double.scale
        print(f"{case.name}: {sum(single.skipped)} of {STEPS} steps skipped; both ways have {'one history' if same else 'two histories'}")
        agree = next((i for i in range(STEPS) if single.scale[i] != double.scale[i]), STEPS)
        tolerance = {
            "loss": round_up(MARGIN * relative(double.loss, single.loss)),
            "grad_norm": round_up(MARGIN * relative(norms(double), norms(single))),
        }
        values = {
            "case": case.name,
            "made_with": {"torch": torch.__version__},
            "steps": STEPS,
            "settled": SETTLED,
            "first_scale": FIRST_SCALE,
            "window": WINDOW,
            "tolerance": tolerance,
            "agree": agree,  # steps in which ops that compute in fp32 and in fp64 have the same scale
            "scale": single.scale,
            "skipped": single.skipped,
            "lr": single.lr,
            "loss": single.loss,
            "grad_norm": [None if s else n for n, s in zip(single.grad_norm, single.skipped)],
        }
        (HERE / "values" / f"{case.name}_fp16.json").write_text(json.dumps(values) + "\n")
        print(f"  tolerance {tolerance}, agree {agree}, loss {single.loss[0]:.4f} -> {single.loss[-1]:.4f}")


if __name__ == "__main__":
    main()
