#!/usr/bin/env python3
"""Trains latent attention with experts, and gpt-oss, in compiled PyTorch: the peers of our whole training steps.

    torch_families.py PLAN [--out=FILE] [--name=NAME] [--steps=N] [--warmup=N] [--time-limit=S] [--loss=plain|chunked]
                      [--optimizer=compiled|fused] [--attention=auto|WAY] [--compile=blocks|model] [--compile-mode=MODE] [--micro-batch=N]
    torch_families.py --check SHARDC [RECIPE ...]

The first form trains the model of one of our placed plans on one GPU, from random weights, in bf16 with fp32 masters,
and writes what paired_speed.py reads. The second form shows that it is the same model: a small copy of each recipe
trains in both programs in fp32 on the CPU from the same weights, and losses must agree. To be as fast as PyTorch
allows, it uses compiled blocks, grouped products with biases as a column of ones, rows that are gathered in both
directions (no atomic additions), the fastest attention for the shape, flex attention for windows and sinks, and an
optimizer of one kernel per tensor on bf16 gradients. Exits with 77 without PyTorch or a GPU.
"""

import argparse
import dataclasses
import faulthandler
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
BOUND = 1e-5  # relative difference of our fp32 losses and this program's

try:
    import numpy as np
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    import torch_attention
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)


# ---- options of a plan ----

@dataclasses.dataclass(frozen=True)
class Yarn:
    factor: float
    positions: int
    fast: float
    slow: float
    rounds: bool
    magnitude: float  # of cosines and sines


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    hidden: int
    heads: int
    groups: int
    head: int  # channels of queries and keys
    values: int
    sequence: int
    vocabulary: int
    eps: float
    base: float
    yarn: Yarn
    scale: float  # by which attention multiplies scores
    dense: int  # width of layers without experts
    width: int  # of an expert
    shared: int  # width of the shared expert; 0: none
    experts: int
    chosen: int
    has_experts: tuple  # by layer
    windows: tuple  # by layer: the keys that a query sees, itself included; None: all
    latent: int = 0  # channels of compressed keys and values
    rotated: int = 0  # channels of a head, the last ones, with rotary positions
    is_gpt_oss: bool = False  # biases, sinks, and units with a clamp
    clamp: float = 0.0


class Options(dict):
    """The options of a placed plan, or those that `shardc explain` prints."""

    def __init__(self, text):
        found = re.findall(r"^ *([a-z_]+(?:\.[a-z_0-9.]+)?) = (.*?)(?:  //.*)?$", text, re.MULTILINE)
        super().__init__((name, value.strip()) for name, value in found)

    def has(self, name):
        return self.get(name, "none") != "none"

    def number(self, name):
        return float(self[name].replace("_", ""))

    def integer(self, name):
        return int(self.number(name))

    def numbers(self, name):
        return [int(word.replace("_", "")) for word in re.findall(r"-?[\d_]+", self[name])]


def magnitude_of(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def model_of(options):
    family = options["model"].strip('"')
    m = lambda name: options.integer(f"model.{name}")
    layers = m("num_layers")
    same = dict(layers=layers, hidden=m("hidden_size"), heads=m("num_attention_heads"), sequence=m("seq_length"),
                vocabulary=m("vocab_size"), eps=options.number("model.layernorm_epsilon"),
                base=options.number("model.rotary_base"), dense=m("ffn_hidden_size"), width=m("moe_ffn_hidden_size"),
                experts=m("num_moe_experts"), chosen=m("moe_router_topk"))
    if family == "gpt_oss":
        factor = options.number("model.yarn_rotary_scaling_factor")
        window = options.numbers("model.window_size")[0] + 1
        yarn = Yarn(factor, m("yarn_original_max_position_embeddings"), options.number("model.yarn_beta_fast"),
                    options.number("model.yarn_beta_slow"), False, magnitude_of(factor, 1))
        every = int(options.numbers("model.window_attn_skip_freq")[0])
        return Model(**same, groups=m("num_query_groups"), head=m("kv_channels"), values=m("kv_channels"), yarn=yarn,
                     scale=m("kv_channels") ** -0.5, shared=0, has_experts=(True,) * layers,
                     windows=tuple(window if (i + 1) % every else None for i in range(layers)), is_gpt_oss=True,
                     clamp=options.number("model.activation_func_clamp_value"))
    if family != "deepseek_v2" or options.has("model.q_lora_rank") or options.has("model.moe_router_num_groups"):
        sys.exit(f"{family}: there are deepseek_v2 without compressed queries and groups of experts, and gpt_oss")
    factor, all_dim = options.number("model.rotary_scaling_factor"), options.number("model.mscale_all_dim")
    of_scores = magnitude_of(factor, all_dim)
    yarn = Yarn(factor, m("original_max_position_embeddings"), options.number("model.beta_fast"),
                options.number("model.beta_slow"), True,
                magnitude_of(factor, options.number("model.mscale")) / of_scores)
    head = m("qk_head_dim") + m("qk_pos_emb_head_dim")
    return Model(**same, groups=same["heads"], head=head, values=m("v_head_dim"), yarn=yarn,
                 scale=of_scores ** 2 * head ** -0.5, shared=m("moe_shared_expert_intermediate_size"),
                 has_experts=tuple(bool(n) for n in options.numbers("model.moe_layer_freq")), windows=(None,) * layers,
                 latent=m("kv_lora_rank"), rotated=m("qk_pos_emb_head_dim"))


# ---- parts ----

def table_of(model, device):
    """The cosines and sines [S, channels / 2] of YaRN's frequencies, in fp32."""
    channels = model.rotated or model.head
    yarn, half = model.yarn, channels // 2
    plain = model.base ** (-torch.arange(half, dtype=torch.float64) * 2 / channels)
    place = lambda turns: channels * math.log(yarn.positions / (turns * 2 * math.pi)) / (2 * math.log(model.base))
    low, high = place(yarn.fast), place(yarn.slow)
    if yarn.rounds:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, channels - 1)
    ramp = ((torch.arange(half, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    angle = torch.outer(torch.arange(model.sequence, dtype=torch.float64), plain * (1 - ramp) + plain / yarn.factor * ramp)
    return [(yarn.magnitude * part).float().to(device) for part in (angle.cos(), angle.sin())]


def turned(a, b, table):
    cos, sin = (part[None, :, None, :] for part in table)
    a, b = a.float(), b.float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Norm(nn.Module):
    def __init__(self, channels, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(channels)), eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(x.dtype)


def plain_attention(q, k, v, scale, window=None, sinks=None):
    """Attention by its definition, of q [B,N,S,D], k [B,G,S,D], v [B,G,S,E]."""
    queries = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(queries, 1) for t in (k, v))
    back = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None]
    unseen = back < 0 if window is None else (back < 0) | (back >= window)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(unseen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
    return scores.softmax(-1)[..., : q.shape[2]] @ v


def sunk_attention(q, k, v, mask, scale, sinks):
    """Attention with sinks. A sink is one more key with value 0, which takes its share of each query's softmax."""
    out, sums = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
                               return_aux=AuxRequest(lse=True))
    return out * torch.sigmoid(sums.lse - sinks.float()[None, :, None])[..., None].to(out.dtype)


class Latent(nn.Module):
    def __init__(self, model, layer, attend):
        super().__init__()
        self.m, self.attend = model, attend
        m = model
        # Queries, compressed keys and values, and those channels of keys that all heads share.
        self.down = nn.Linear(m.hidden, m.heads * m.head + m.latent + m.rotated, bias=False)
        self.norm = Norm(m.latent, m.eps)
        self.up = nn.Linear(m.latent, m.heads * (m.head - m.rotated + m.values), bias=False)
        self.proj = nn.Linear(m.heads * m.values, m.hidden, bias=False)

    def forward(self, x, table):
        m, (batch, sequence, _) = self.m, x.shape
        plain = m.head - m.rotated
        q, rank, shared = self.down(x).split([m.heads * m.head, m.latent, m.rotated], -1)
        q = q.view(batch, sequence, m.heads, m.head)
        keys, v = self.up(self.norm(rank)).view(batch, sequence, m.heads, -1).split([plain, m.values], -1)
        pairs = lambda t: turned(*t.unflatten(-1, (-1, 2)).unbind(-1), table).to(x.dtype)  # neighbours
        q = torch.cat([q[..., :plain], pairs(q[..., plain:])], -1)
        shared = pairs(shared[:, :, None]).expand(-1, -1, m.heads, -1)
        k = torch.cat([keys, shared], -1)
        out = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), m.scale)
        return self.proj(out.transpose(1, 2).flatten(2))


class Sunk(nn.Module):
    def __init__(self, model, layer, attend):
        super().__init__()
        self.m, self.attend, self.window = model, attend, model.windows[layer]
        m = model
        self.qkv = nn.Linear(m.hidden, (m.heads + 2 * m.groups) * m.head)
        self.proj = nn.Linear(m.heads * m.head, m.hidden)
        self.sinks = nn.Parameter(torch.empty(m.heads))

    def forward(self, x, table):
        m, (batch, sequence, _) = self.m, x.shape
        queries = m.heads // m.groups
        rows = self.qkv(x).view(batch, sequence, m.groups, queries + 2, m.head)
        q, k, v = rows.split([queries, 1, 1], 3)
        halves = lambda t: turned(*t.flatten(2, 3).chunk(2, -1), table).to(x.dtype).transpose(1, 2)
        out = self.attend(halves(q), halves(k), v[..., 0, :].transpose(1, 2), m.scale, self.window, self.sinks)
        return self.proj(out.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 2 * width, bias=False), nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Give(torch.autograd.Function):
    """Gathers tokens into rows of experts. The backward pass gathers too, since each row is one choice of one token."""

    @staticmethod
    def forward(ctx, x, source, place, chosen):
        ctx.save_for_backward(place)
        ctx.chosen = chosen
        return torch.where((source >= 0)[:, None], x[source.clamp(min=0) // chosen], 0)

    @staticmethod
    def backward(ctx, dy):
        (place,) = ctx.saved_tensors
        return dy[place].view(-1, ctx.chosen, dy.shape[-1]).sum(1), None, None, None


class Take(torch.autograd.Function):
    """Combines rows of experts into tokens: weighted sums."""

    @staticmethod
    def forward(ctx, y, weight, source, place):
        ctx.save_for_backward(y, weight, source, place)
        rows = y[place].view(*weight.shape, y.shape[-1])
        return (rows * weight[..., None].to(y.dtype)).sum(1)

    @staticmethod
    def backward(ctx, dout):
        y, weight, source, place = ctx.saved_tensors
        at = source.clamp(min=0)
        dy = torch.where((source >= 0)[:, None], dout[at // weight.shape[1]] * weight.flatten()[at][:, None].to(dout.dtype), 0)
        dweight = (y[place].view(*weight.shape, y.shape[-1]).float() * dout[:, None].float()).sum(-1)
        return dy, dweight.to(weight.dtype), None, None


def grouped(a, b, ends):
    """The grouped product: rows of a from ends[e - 1] to ends[e], times b[e]."""
    if a.device.type == "cpu":
        begins = [0, *ends.tolist()]
        parts = [a[begin:end] @ b[e] for e, (begin, end) in enumerate(zip(begins, begins[1:]))]
        return torch.cat([*parts, a.new_zeros(a.shape[0] - begins[-1], b.shape[-1])])
    return F.grouped_mm(a, b, offs=ends) if hasattr(F, "grouped_mm") else torch._grouped_mm(a, b, offs=ends)


class Experts(nn.Module):
    ALIGN = 16  # grouped products need multiples, in rows of an expert and in columns

    def __init__(self, model):
        super().__init__()
        m = self.m = model
        self.ones = self.ALIGN if m.is_gpt_oss else 0  # a column of ones, then zeros: its weights are biases
        self.router = nn.Linear(m.hidden, m.experts, bias=m.is_gpt_oss)
        self.up = nn.Parameter(torch.empty(m.experts, 2 * m.width, m.hidden + self.ones))
        self.down = nn.Parameter(torch.empty(m.experts, m.hidden, m.width + self.ones))
        self.shared = Dense(m.hidden, m.shared) if m.shared else None

    def biased(self, x):
        """Appends the columns by which biases are multiplied."""
        return x if not self.ones else F.pad(F.pad(x, (0, 1), value=1.0), (0, self.ones - 1))

    def places(self, expert):
        """The row of each choice; the choice of each row, or -1; and the end of each expert's rows."""
        slot, count = expert.flatten(), self.m.experts
        chosen = (slot[:, None] == torch.arange(count, device=slot.device)[None]).to(torch.int32)
        before = chosen.cumsum(0).to(torch.int32)
        size = (before[-1] + (self.ALIGN - 1)) // self.ALIGN * self.ALIGN
        ends = size.cumsum(0).to(torch.int32)
        place = ((ends - size)[None] + before - 1).gather(1, slot[:, None]).squeeze(1).long()
        source = torch.full((slot.numel() + count * self.ALIGN,), -1, device=slot.device, dtype=torch.long)
        return place, source.scatter(0, place, torch.arange(slot.numel(), device=slot.device)), ends

    def act(self, h):
        gate, up = h.chunk(2, -1)
        if not self.m.is_gpt_oss:
            return F.silu(gate) * up
        gate, up = gate.float().clamp(max=self.m.clamp), up.float().clamp(-self.m.clamp, self.m.clamp)
        return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(h.dtype)

    def forward(self, x):
        m, rows = self.m, x.flatten(0, 1)
        logits = self.router(rows).float()
        if m.is_gpt_oss:
            best, expert = logits.topk(m.chosen, -1)
            weight = best.softmax(-1)
        else:
            weight, expert = logits.softmax(-1).topk(m.chosen, -1)
        place, source, ends = self.places(expert)
        given = self.biased(Give.apply(rows, source, place, m.chosen))
        h = grouped(given, self.up.transpose(-2, -1), ends)
        y = grouped(self.biased(self.act(h)), self.down.transpose(-2, -1), ends)
        out = Take.apply(y, weight, source, place)
        return (out if self.shared is None else out + self.shared(rows)).view_as(x)


class Block(nn.Module):
    def __init__(self, model, layer, attend):
        super().__init__()
        self.norm1, self.norm2 = Norm(model.hidden, model.eps), Norm(model.hidden, model.eps)
        self.attention = (Sunk if model.is_gpt_oss else Latent)(model, layer, attend)
        self.mlp = Experts(model) if model.has_experts[layer] else Dense(model.hidden, model.dense)

    def forward(self, x, table):
        x = x + self.attention(self.norm1(x), table)
        return x + self.mlp(self.norm2(x))


def plain_loss(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight).float(), labels)


def chunk_loss(x, weight, labels, share):
    """The loss of some rows, and the gradient of their logits."""
    logits = (x @ weight.t()).float()
    sums = torch.logsumexp(logits, -1, keepdim=True)
    hit = torch.arange(weight.shape[0], device=x.device)[None] == labels[:, None]
    loss = (sums - logits.gather(1, labels[:, None])).sum() * share
    return loss, ((torch.exp(logits - sums) - hit.float()) * share).to(x.dtype)


class ChunkedLoss(torch.autograd.Function):
    """Computes both gradients in the forward pass, so that only some rows of logits exist at a time."""
    ROWS = 4096
    of_chunk = staticmethod(chunk_loss)

    @staticmethod
    def forward(ctx, x, weight, labels):
        loss, dx, dweight = x.new_zeros((), dtype=torch.float32), torch.empty_like(x), None
        for begin in range(0, x.shape[0], ChunkedLoss.ROWS):
            rows = slice(begin, begin + ChunkedLoss.ROWS)
            part, dlogits = ChunkedLoss.of_chunk(x[rows], weight, labels[rows], 1 / x.shape[0])
            loss += part
            torch.mm(dlogits, weight, out=dx[rows])
            product = dlogits.t() @ x[rows]
            if dweight is None:
                dweight = product if x.shape[0] <= ChunkedLoss.ROWS else product.float()
            else:
                dweight.add_(product)
        ctx.save_for_backward(dx, dweight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, by):
        dx, dweight = ctx.saved_tensors
        return dx.mul_(by), dweight.mul_(by), None


class Whole(nn.Module):
    """The whole model, from tokens to the mean loss."""

    def __init__(self, model, attend, loss="plain"):
        super().__init__()
        self.model, self.loss = model, loss
        self.embedding = nn.Embedding(model.vocabulary, model.hidden)
        self.blocks = nn.ModuleList(Block(model, i, attend) for i in range(model.layers))
        self.norm = Norm(model.hidden, model.eps)
        self.head = nn.Parameter(torch.empty(model.vocabulary, model.hidden))
        self.of_plain = plain_loss

    def forward(self, tokens, labels, table):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, table)
        x = self.norm(x).flatten(0, 1)
        if self.loss == "chunked":
            return ChunkedLoss.apply(x, self.head, labels.flatten())
        return self.of_plain(x, self.head, labels.flatten())


# ---- training ----

class Adam:
    """AdamW on fp32 masters and on gradients of the parameters' type. If parameters are fp32, they are the masters."""

    def __init__(self, parameters, compiles, lr=3e-4, betas=(0.9, 0.95), decay=0.1, clip=1.0):
        self.parameters, self.betas, self.decay, self.clip = parameters, betas, decay, clip
        self.lr, self.applied = lr, 0
        self.masters = [p.detach() if p.dtype == torch.float32 else p.detach().float() for p in parameters]
        self.means, self.squares = ([torch.zeros_like(m) for m in self.masters] for _ in range(2))
        self.update = torch.compile(self.update_one, dynamic=True) if compiles else self.update_one

    def update_one(self, p, gradient, master, mean, square, numbers):
        factor, rate, decay, first, second = numbers.unbind()
        b1, b2 = self.betas
        g = gradient.float() * factor
        m, s = mean * b1 + g * (1 - b1), square * b2 + g * g * (1 - b2)
        new = master * (1 - rate * decay) - rate * (m * first) / ((s * second).sqrt() + 1e-8)
        mean.copy_(m)
        square.copy_(s)
        master.copy_(new)
        if p.dtype != torch.float32:
            p.copy_(new)

    @torch.no_grad()
    def step(self):
        """Applies an update. Returns the norm of the gradients."""
        self.applied += 1
        gradients = [p.grad for p in self.parameters]
        norm = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum().sqrt()
        factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        corrections = [1 / (1 - beta ** self.applied) for beta in self.betas]
        tail = lambda decay: torch.tensor([self.lr, decay, *corrections], device=norm.device)
        numbers = [torch.cat([factor[None], tail(decay)]) for decay in (0.0, self.decay)]
        for p, *of_p in zip(self.parameters, gradients, self.masters, self.means, self.squares):
            flat = [t.view(-1) for t in (p.detach(), *of_p)]
            self.update(*flat, numbers[p.dim() > 1])
            p.grad = None
        return norm


class FusedAdam:
    """PyTorch's fused AdamW on fp32 masters, as its users have it: gradients are copied to fp32, weights back to
    bf16."""

    def __init__(self, parameters, lr=3e-4, betas=(0.9, 0.95), decay=0.1, clip=1.0):
        self.parameters, self.clip, self.lr = parameters, clip, lr
        self.masters = [p.detach().float() for p in parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.gradients = [master.grad for master in self.masters]
        decays = ([m for m in self.masters if m.dim() > 1], decay), ([m for m in self.masters if m.dim() <= 1], 0.0)
        self.optimizer = torch.optim.AdamW([{"params": group, "weight_decay": rate} for group, rate in decays],
                                           lr=lr, betas=betas, eps=1e-8, fused=True)

    @torch.no_grad()
    def step(self):
        """Applies an update. Returns the norm of the gradients."""
        torch._foreach_copy_(self.gradients, [p.grad for p in self.parameters])
        norm = torch.stack(torch._foreach_norm(self.gradients, 2)).square().sum().sqrt()
        torch._foreach_mul_(self.gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.masters)
        for p in self.parameters:
            p.grad = None
        return norm


@torch.no_grad()
def randomize(whole):
    for name, p in whole.named_parameters():
        if "norm" in name:
            p.fill_(1)
        elif p.dim() == 1:
            p.zero_()
        else:
            p.normal_(0, 0.02)
    for block in whole.blocks:
        if isinstance(block.mlp, Experts) and block.mlp.ones:
            for weights, width in ((block.mlp.up, whole.model.hidden), (block.mlp.down, whole.model.width)):
                weights[..., width + 1:] = 0


def compiled(whole, options):
    """Compiles the model as one graph, or block by block, where blocks of one kind share a graph."""
    settings = dict(dynamic=False, mode=options.compile_mode)
    torch._dynamo.config.recompile_limit = 64
    if options.compile == "model":
        return torch.compile(whole, **settings)
    for part in [*whole.blocks, whole.norm]:
        part.forward = torch.compile(part.forward, fullgraph=True, **settings)
    whole.of_plain = torch.compile(whole.of_plain, **settings)
    ChunkedLoss.of_chunk = staticmethod(torch.compile(chunk_loss, **settings))
    return whole


def attention_for(model, batch, wanted, say):
    """The fastest attention for the shape, or the wanted one; its name; and the times of all."""
    if model.is_gpt_oss:
        masks = {window: torch_attention.mask_of(model.sequence, window) for window in set(model.windows)}
        def attend(q, k, v, scale, window, sinks):
            return sunk_attention(q, k, v, masks[window], scale, sinks)
        return attend, "flex", {}
    named = torch_attention.ways(model.sequence)
    took = {}
    if wanted == "auto":
        work = torch_attention.operands(batch, model.heads, model.sequence, model.head, model.values)
        took = torch_attention.fastest(named, *work, model.scale, say)
        if not took:
            sys.exit("PyTorch has no attention of this shape")
        wanted = list(took)[-1]
    if wanted == "flex":  # it is compiled inside of blocks
        mask = torch_attention.mask_of(model.sequence)
        return (lambda q, k, v, scale: flex_attention(q, k, v, block_mask=mask, scale=scale)), wanted, took
    backend = wanted.split(",")[0]
    switches = {"cudnn": torch.backends.cuda.enable_cudnn_sdp, "flash": torch.backends.cuda.enable_flash_sdp,
                "efficient": torch.backends.cuda.enable_mem_efficient_sdp, "math": torch.backends.cuda.enable_math_sdp}
    for name, switch in switches.items():
        switch(name == backend)
    plain = lambda q, k, v, scale: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return (torch_attention.padded(plain) if "padded" in wanted else plain), wanted, took


def measure(options):
    begun = time.time()
    say = lambda *words: print(f"[{time.time() - begun:6.1f}s]", *words, flush=True)
    text = options.plan.read_text(errors="replace")[:400_000]
    recipe = Options(text)
    model = model_of(recipe)
    batch = options.micro_batch or recipe.integer("train.micro_batch_size")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    attend, way, took = attention_for(model, batch, options.attention, say)
    say(f"attention by {way}", {name: round(time["both"], 3) for name, time in took.items()})
    with torch.device("cuda"):
        whole = Whole(model, attend, options.loss).bfloat16()
    randomize(whole)
    parameters = list(whole.parameters())
    adam = FusedAdam(parameters) if options.optimizer == "fused" else Adam(parameters, compiles=True)
    run = compiled(whole, options)
    table = table_of(model, "cuda")
    total = options.warmup + options.steps
    random = np.random.default_rng(1)
    rows = (model.vocabulary * random.random((total, batch, model.sequence + 1)) ** 3).astype(np.int64)
    rows = torch.from_numpy(rows.clip(0, model.vocabulary - 1)).cuda()
    losses, norms, marks = [], [], []
    for step in range(total):
        if step == options.warmup:
            torch.cuda.reset_peak_memory_stats()
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        adam.lr = 3e-4 * min(1.0, (step + 1) / 200)
        loss = run(rows[step, :, :-1].contiguous(), rows[step, :, 1:].contiguous(), table)
        loss.backward()
        losses.append(loss.detach())
        norms.append(adam.step())
        if step < options.warmup:
            torch.cuda.synchronize()
            say(f"step {step + 1}: loss {losses[-1].item():.4f}, gradient norm {norms[-1].item():.3f}")
    marks.append(torch.cuda.Event(enable_timing=True))
    marks[-1].record()
    torch.cuda.synchronize()
    took_ms = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])][options.warmup:]
    free, all_memory = torch.cuda.mem_get_info()
    gib = lambda count: round(count / 2 ** 30, 3)
    median, tokens = statistics.median(took_ms), batch * model.sequence
    result = {
        "name": options.name, "tokens_per_s_gpu": tokens / median * 1e3,
        "step_ms": {"median": median, "min": min(took_ms), "max": max(took_ms)}, "tokens": tokens,
        "memory_gib": {"device_used": gib(all_memory - free), "peak_allocated": gib(torch.cuda.max_memory_allocated()),
                       "peak_reserved": gib(torch.cuda.max_memory_reserved())},
        "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0), "attention": {"way": way, "ms": took},
        "parameters": sum(p.numel() for p in parameters), "loss": [round(value.item(), 5) for value in losses],
        "grad_norm": [round(value.item(), 4) for value in norms],
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                     "gpu": torch.cuda.get_device_name()}}
    say(f"{median:.1f} ms a step, {result['tokens_per_s_gpu']:,.0f} tokens/s, {result['memory_gib']}")
    if options.out:
        options.out.write_text(json.dumps(result))
    if not all(math.isfinite(value) for value in result["loss"]):
        sys.exit("a loss is not finite")


# ---- the model is the same ----

@torch.no_grad()
def take_weights(whole, p):
    """Reads weights from one of our checkpoints, by Megatron-Core's names."""
    model = whole.model
    whole.embedding.weight.copy_(p["embedding.word_embeddings.weight"])
    whole.head.copy_(p["output_layer.weight"])
    whole.norm.weight.copy_(p["decoder.final_layernorm.weight"])
    for i, block in enumerate(whole.blocks):
        at = {name.removeprefix(f"decoder.layers.{i}."): value for name, value in p.items() if f"layers.{i}." in name}
        first = lambda *names: next(at[name] for name in names if name in at)
        block.norm1.weight.copy_(first("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"))
        block.norm2.weight.copy_(first("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"))
        attention = block.attention
        attention.proj.weight.copy_(at["self_attention.linear_proj.weight"])
        if model.is_gpt_oss:
            attention.proj.bias.copy_(at["self_attention.linear_proj.bias"])
            attention.qkv.weight.copy_(at["self_attention.linear_qkv.weight"])
            attention.qkv.bias.copy_(at["self_attention.linear_qkv.bias"])
            attention.sinks.copy_(at["self_attention.core_attention.softmax_offset"])
        else:
            attention.down.weight.copy_(
                torch.cat([at["self_attention.linear_q_proj.weight"], at["self_attention.linear_kv_down_proj.weight"]]))
            attention.norm.weight.copy_(at["self_attention.linear_kv_up_proj.layer_norm_weight"])
            attention.up.weight.copy_(at["self_attention.linear_kv_up_proj.weight"])
        take_feed_forward(block.mlp, at)


def take_feed_forward(mlp, at):
    def dense(into, stem):
        into.up.weight.copy_(at[f"{stem}linear_fc1.weight"])
        into.down.weight.copy_(at[f"{stem}linear_fc2.weight"])

    if isinstance(mlp, Dense):
        return dense(mlp, "mlp.")
    mlp.router.weight.copy_(at["mlp.router.weight"])
    if mlp.ones:
        mlp.router.bias.copy_(at["mlp.router.bias"])
    for weights, name in ((mlp.up, "linear_fc1"), (mlp.down, "linear_fc2")):
        weights.zero_()
        for expert in range(weights.shape[0]):
            one = at[f"mlp.experts.{name}.weight{expert}"]
            weights[expert, :, : one.shape[1]] = one
            if mlp.ones:
                weights[expert, :, one.shape[1]] = at[f"mlp.experts.{name}.bias{expert}"]
    if mlp.shared is not None:
        dense(mlp.shared, "mlp.shared_experts.")


class Check:
    STEPS, BATCH = 10, 2

    def __init__(self, shardc, recipe, folder):
        self.shardc, self.recipe, self.folder = shardc, recipe, folder

    def call(self, *words):
        done = subprocess.run([str(word) for word in (self.shardc, *words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def settings(self):
        texts = ["mixed_precision=fp32", "cluster.gpu=host", "dataset.kind=indexed",
                 f'dataset.blend=["{self.folder}/text"]', 'dataset.split="100,0,0"', "dataset.random_seed=110",
                 f"train.train_iters={self.STEPS}", f"train.micro_batch_size={self.BATCH}", f"train.global_batch_size={self.BATCH}",
                 f"scheduler.lr_decay_iters={self.STEPS}", "scheduler.lr_warmup_iters=3", "optimizer.lr=1e-2",
                 "optimizer.min_lr=1e-3", "model.init_method_std=0.1"]
        return [f"--set={text}" for text in texts]

    def run(self, name, *settings):
        metrics = self.folder / f"{name}.jsonl"
        self.call("run", self.small, *self.settings(), *settings, f"--metrics={metrics}")
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]

    def losses(self):
        """The losses of shardc and of PyTorch, from the same weights and data."""
        import torch_model
        from maker import dataset

        self.small = self.folder / "small.recipe"
        self.call("shrink", self.recipe, "--ranks=1", "--name=small", "-o", self.small)
        options = Options(self.call("explain", self.small, "model", *self.settings()))
        model = model_of(options)
        words = np.random.default_rng(1).integers(0, model.vocabulary, 20_000) ** 2 % model.vocabulary
        documents = [part.astype(np.uint16) for part in np.array_split(words, 40)]
        dataset.write_indexed(str(self.folder / "text"), documents)
        saves = self.folder / "saves"
        self.run("initial", "--set=train.exit_interval=1", "--set=optimizer.lr=1e-30", "--set=optimizer.min_lr=0",
                 "--set=dist.use_megatron_fsdp=true", "--set=ddp.use_megatron_fsdp=true", "--set=checkpoint.save_optim=false",
                 "--set=checkpoint.ckpt_format=fsdp_dtensor", f'--set=checkpoint.save="{saves}"')
        ours = self.run("ours")
        order = dataset.SampleOrder(documents, self.STEPS * self.BATCH, model.sequence, 110)
        rows = [np.stack([order.sample(step * self.BATCH + i) for i in range(self.BATCH)]) for step in range(self.STEPS)]
        job = torch_model.Job("", 0, 0, 0, 0, lr=1e-2, min_lr=1e-3, warmup=3, steps=self.STEPS, batch=0, sequence=0)
        initial = torch_model.load_parameters(torch_model.newest(saves), "cpu")
        return ours, self.torch_losses(model, initial, [torch.from_numpy(r).long() for r in rows],
                                       lambda step: torch_model.learning_rate(job, step))

    def torch_losses(self, model, initial, rows, rate):
        def flexible(q, k, v, scale, window=None, sinks=None):
            mask = torch_attention.mask_of(model.sequence, window, "cpu")
            if sinks is not None:
                return sunk_attention(q, k, v, mask, scale, sinks)
            return flex_attention(q, k, v, block_mask=mask, scale=scale)

        whole, table = Whole(model, plain_attention), table_of(model, "cpu")
        take_weights(whole, initial)
        self.compare_ways(model, initial, flexible, whole, rows[0], table)
        adam, losses = Adam(list(whole.parameters()), compiles=False), []
        for step, text in enumerate(rows):
            loss = whole(text[:, :-1], text[:, 1:], table)
            loss.backward()
            adam.lr = rate(step)
            adam.step()
            losses.append(loss.item())
        return losses

    @staticmethod
    @torch.no_grad()
    def compare_ways(model, initial, flexible, whole, text, table):
        """Flex attention and the chunked loss must give the same loss as their definitions."""
        other = Whole(model, flexible, "chunked")
        take_weights(other, initial)
        a, b = (w(text[:, :-1], text[:, 1:], table).item() for w in (whole, other))
        if abs(a - b) > BOUND * a:
            sys.exit(f"flex attention and the chunked loss: {b}, by definition: {a}")


def check(shardc, recipes):
    sys.path.insert(0, str(ROOT / "test/e2e/golden"))
    good = True
    for recipe in recipes or [ROOT / "test/gpu/deepseek_v2_lite_4l.recipe", ROOT / "test/gpu/gpt_oss_4l.recipe"]:
        with tempfile.TemporaryDirectory() as name:
            ours, theirs = Check(shardc, recipe, pathlib.Path(name)).losses()
        widest = max(abs(a - b) / b for a, b in zip(ours, theirs))
        good = good and len(ours) == len(theirs) and widest <= BOUND
        print(f"{pathlib.Path(recipe).stem}: {len(ours)} losses, {ours[0]:.6f} to {ours[-1]:.6f}, PyTorch's {theirs[0]:.6f} to "
              f"{theirs[-1]:.6f}; within {widest:.1e}")
    sys.exit(0 if good else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=pathlib.Path, nargs="?")
    parser.add_argument("--check", nargs="+", metavar=("SHARDC", "RECIPE"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--name", default="torch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=6, help="steps that are not timed, compilation included")
    parser.add_argument("--time-limit", type=int, default=0)
    parser.add_argument("--optimizer", choices=["compiled", "fused"], default="compiled",
                        help="compiled: a kernel a tensor on bf16 gradients; fused: PyTorch's own, on fp32 copies of them")
    parser.add_argument("--loss", choices=["plain", "chunked"], default="plain")
    parser.add_argument("--attention", default="auto", help="a way of torch_attention.py; auto: the fastest of them")
    parser.add_argument("--compile", choices=["blocks", "model"], default="blocks")
    parser.add_argument("--compile-mode", help="torch.compile's, such as max-autotune-no-cudagraphs")
    parser.add_argument("--micro-batch", type=int, help="in place of the plan's")
    options = parser.parse_args()
    if options.check:
        check(options.check[0], options.check[1:])
    if not options.plan:
        parser.error("a plan, or --check")
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        sys.exit(SKIPPED)
    if options.time_limit:
        faulthandler.dump_traceback_later(options.time_limit, exit=True)
    measure(options)


if __name__ == "__main__":
    main()
