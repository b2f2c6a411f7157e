"""Trains models in the style of GPT-2, Llama and Mixtral in PyTorch, from parameters in one of our checkpoints: the
reference of loss curves.

Parameters have Megatron-Core's names and row layouts. In bf16, weights and activations are bf16, and masters, moments
and the loss are fp32. In fp32, everything is, without tf32.
"""

import dataclasses
import math
import pathlib
import re

import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint import FileSystemReader
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
           "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


@dataclasses.dataclass(frozen=True)
class Job:
    """The options of the recipe."""
    family: str
    layers: int
    heads: int
    groups: int
    vocab: int  # without padding
    lr: float
    min_lr: float
    warmup: int
    steps: int
    batch: int
    sequence: int
    eps: float = 1e-5
    rotary_base: float = 10_000.0
    weight_decay: float = 0.1
    betas: tuple = (0.9, 0.95)
    clip: float = 1.0
    experts: int = 0  # in each layer; 0: dense
    chosen: int = 0  # experts per token


def load_parameters(folder, device):
    """{name: fp32 tensor}, with gated products in one piece."""
    metadata = FileSystemReader(folder).read_metadata()
    prefix = "model.module."
    state = {name: torch.empty(item.size, dtype=item.properties.dtype)
             for name, item in metadata.state_dict_metadata.items() if name.startswith(prefix)}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    found = {name.removeprefix(prefix): value.float() for name, value in state.items()}
    for name in [name for name in found if re.search(r"\.(weight|bias)\d*_w$", name)]:
        stem = name.removesuffix("_w")
        found[stem] = torch.cat([found.pop(name), found.pop(f"{stem}_v")])
    return {name: value.to(device) for name, value in found.items()}


def norm(x, p, name, job):
    weight, bias = p[f"{name}weight"], p.get(f"{name}bias")
    shape = weight.shape
    if bias is None:
        return F.rms_norm(x.float(), shape, weight.float(), job.eps).to(x.dtype)
    return F.layer_norm(x.float(), shape, weight.float(), bias.float(), job.eps).to(x.dtype)


def linear(x, p, name):
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    return p["fp8"](x, name, weight, bias) if p.get("fp8") else F.linear(x, weight, bias)


def rotate(x, base):
    """Rotates x[B,S,heads,D] by positions: pairs are the two halves of each head."""
    sequence, head = x.shape[1], x.shape[-1]
    frequency = base ** (-torch.arange(0, head, 2, dtype=torch.float64, device=x.device) / head)
    angle = torch.outer(torch.arange(sequence, dtype=torch.float64, device=x.device), frequency)[None, :, None, :]
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def attend(x, p, layer, job):
    batch, sequence, hidden = x.shape
    head, queries = hidden // job.heads, job.heads // job.groups
    qkv = linear(x, p, f"{layer}self_attention.linear_qkv").view(batch, sequence, job.groups, queries + 2, head)
    q = qkv[..., :queries, :].reshape(batch, sequence, job.heads, head)
    k, v = qkv[..., queries, :], qkv[..., queries + 1, :]
    if job.family == "llama":
        q, k = rotate(q, job.rotary_base), rotate(k, job.rotary_base)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if queries > 1:
        k, v = (t.repeat_interleave(queries, 1) for t in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(out.transpose(1, 2).flatten(2), p, f"{layer}self_attention.linear_proj")


def feed_forward(x, p, block, job):
    y = linear(x, p, f"{block}linear_fc1")
    if job.family == "gpt":
        y = F.gelu(y)
    else:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return linear(y, p, f"{block}linear_fc2")


def mix(x, p, block, job):
    """A layer of experts. A token uses the experts with the largest logits, weighted by the softmax of these logits in
    fp32, as Megatron-Core's router without `moe_router_pre_softmax` does."""
    rows = x.flatten(0, 1)
    logits, chosen = linear(rows, p, f"{block}router").topk(job.chosen, -1)
    weights = logits.float().softmax(-1).to(x.dtype)
    out = torch.zeros_like(rows)
    for expert in range(job.experts):
        row, place = torch.where(chosen == expert)
        y = rows[row]
        gate, up = F.linear(y, p[f"{block}experts.linear_fc1.weight{expert}"]).chunk(2, -1)
        y = F.linear(F.silu(gate) * up * weights[row, place, None], p[f"{block}experts.linear_fc2.weight{expert}"])
        out = out.index_add(0, row, y)
    return out.view_as(x)


def loss_of(p, job, tokens, labels):
    x = p["embedding.word_embeddings.weight"][tokens]
    if job.family == "gpt":
        x = x + p["embedding.position_embeddings.weight"][: tokens.shape[1]]
    for i in range(job.layers):
        layer = f"decoder.layers.{i}."
        x = x + attend(norm(x, p, f"{layer}self_attention.linear_qkv.layer_norm_", job), p, layer, job)
        if job.experts:
            x = x + mix(norm(x, p, f"{layer}pre_mlp_layernorm.", job), p, f"{layer}mlp.", job)
        else:
            x = x + feed_forward(norm(x, p, f"{layer}mlp.linear_fc1.layer_norm_", job), p, f"{layer}mlp.", job)
    x = norm(x, p, "decoder.final_layernorm.", job)
    head = p.get("output_layer.weight", p["embedding.word_embeddings.weight"])
    logits = F.linear(x.flatten(0, 1), head)[:, : job.vocab].float()
    return F.cross_entropy(logits, labels.flatten())


def learning_rate(job, applied):
    """Megatron's cosine schedule with linear warmup, after `applied` updates. It decays over all steps."""
    if applied <= job.warmup:
        return job.lr * applied / job.warmup
    ratio = (applied - job.warmup) / (job.steps - job.warmup)
    return job.min_lr + 0.5 * (math.cos(math.pi * ratio) + 1) * (job.lr - job.min_lr)


def train(job, initial, batches, dtype, kernel, fp8=None, final=None):
    """The losses of a training from these parameters. `batches` yields the tokens of each step, one more than it trains
    on. `fp8` computes the layers' products in place of `dtype` (see torch_fp8.py). `final`, a dictionary, gets the
    parameters after the last step, in fp32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    masters = {name: value.detach().clone() for name, value in initial.items()}
    plain = [m for m in masters.values() if m.dim() == 1]
    decayed = [m for m in masters.values() if m.dim() > 1]
    groups = [{"params": decayed, "weight_decay": job.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=job.lr, betas=job.betas, eps=1e-8, foreach=False, fused=True)
    losses = []
    with sdpa_kernel(KERNELS[kernel]):
        for step in range(job.steps):
            text = batches(step)
            weights = {name: m.to(dtype, copy=True).requires_grad_() for name, m in masters.items()}
            loss = loss_of({**weights, "fp8": fp8}, job, text[:, :-1], text[:, 1:])
            loss.backward()
            for name, master in masters.items():
                master.grad = weights[name].grad.float()
            torch.nn.utils.clip_grad_norm_(masters.values(), job.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(job, step)
            optimizer.step()
            if fp8:
                fp8.end_step()
            losses.append(loss.detach())
    if final is not None:
        final.update(masters)
    return [value.item() for value in losses]


def newest(saves):
    """The folder of the newest checkpoint."""
    saves = pathlib.Path(saves)
    step = int((saves / "latest_checkpointed_iteration.txt").read_text())
    return saves / f"iter_{step:07}"
