#!/usr/bin/env python3
"""Trains a golden case with PyTorch's tensor and sequence parallelism, and compares it with its values.

Needs numpy and torch. Two processes cut the case `llama` by parallelize_module: rows of the embedding and columns of the
logits, heads, columns of the feed-forward layer; what is in between is cut along the sequence. In fp64, so that losses and
gradients of values/ have to come out, which golden-tensor.test compares shardc's runs with.

    check_tensor_parallel.py [--ranks N]
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from maker import cases, dataset, model
from maker.training import learning_rate

HERE = pathlib.Path(__file__).resolve().parent
CASE = cases.LLAMA
STEPS = 5
TOLERANCE = {"loss": 1e-10, "grad_norm": 1e-9, "gradient": 1e-6}  # gradients are kept in fp32
NUMERICS = model.Numerics(torch.float64)
ROWS, WHOLE = Shard(1), Replicate()  # of [batch, sequence, channels]


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        heads, groups, head = CASE.heads, CASE.groups, CASE.head
        self.qkv = nn.Linear(CASE.hidden, (heads + 2 * groups) * head, bias=False)
        self.proj = nn.Linear(heads * head, CASE.hidden, bias=False)

    def forward(self, x, allowed):
        queries, head = CASE.heads // CASE.groups, CASE.head
        qkv = self.qkv(x).unflatten(-1, (-1, queries + 2, head))  # this rank's groups
        q, k, v = qkv[..., :queries, :].flatten(2, 3), qkv[..., queries, :], qkv[..., queries + 1, :]
        q, k = NUMERICS.rope(q, CASE), NUMERICS.rope(k, CASE)
        return self.proj(NUMERICS.attention(q, k, v, allowed))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(CASE.hidden, CASE.ffn, bias=False)
        self.up = nn.Linear(CASE.hidden, CASE.ffn, bias=False)
        self.down = nn.Linear(CASE.ffn, CASE.hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = Norm(CASE.hidden, CASE.eps), Attention()
        self.norm2, self.mlp = Norm(CASE.hidden, CASE.eps), FeedForward()

    def forward(self, x, allowed):
        x = x + self.attention(self.norm1(x), allowed)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(CASE.padded_vocab, CASE.hidden)
        self.layers = nn.ModuleList(Layer() for _ in range(CASE.num_layers))
        self.norm = Norm(CASE.hidden, CASE.eps)
        self.head = nn.Linear(CASE.hidden, CASE.padded_vocab, bias=False)

    def forward(self, tokens, allowed):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, allowed)
        return self.head(self.norm(x))


def parallelize(module, mesh):
    parallelize_module(module, mesh, {
        "words": RowwiseParallel(input_layouts=WHOLE, output_layouts=ROWS),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=ROWS, output_layouts=Shard(-1), use_local_output=False),
    })
    for layer in module.layers:
        parallelize_module(layer, mesh, {
            "norm1": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(ROWS, None), desired_input_layouts=(WHOLE, None)),
            "attention.qkv": ColwiseParallel(),
            "attention.proj": RowwiseParallel(output_layouts=ROWS),
            "norm2": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(ROWS,), desired_input_layouts=(WHOLE,)),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=ROWS),
        })


def parts_of(name):
    """The module's parameters that make up one of Megatron-Core's names."""
    if name == "embedding.word_embeddings.weight":
        return ["words.weight"]
    if name in ("decoder.final_layernorm.weight", "output_layer.weight"):
        return ["norm.weight" if "norm" in name else "head.weight"]
    layer = f"layers.{name.split('.')[2]}."
    return [layer + part for part in {
        "self_attention.linear_qkv.layer_norm_weight": ["norm1.weight"],
        "self_attention.linear_qkv.weight": ["attention.qkv.weight"],
        "self_attention.linear_proj.weight": ["attention.proj.weight"],
        "mlp.linear_fc1.layer_norm_weight": ["norm2.weight"],
        "mlp.linear_fc1.weight": ["mlp.gate.weight", "mlp.up.weight"],
        "mlp.linear_fc2.weight": ["mlp.down.weight"],
    }[name.split(".", 3)[3]]]


def load(module, values):
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parts = parts_of(name)
            for part, piece in zip(parts, torch.from_numpy(value).double().chunk(len(parts))):
                parameters[part].copy_(piece)


def gradients_of(module):
    parameters = dict(module.named_parameters())
    whole = {name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for name, p in parameters.items()}
    return {name: torch.cat([whole[part] for part in parts_of(name)]).numpy().copy()
            for name in model.parameter_shapes(CASE)}


def train(rank, ranks, meeting, found):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    module = Llama()
    load(module, model.initial_values(CASE))
    parallelize(module, mesh)
    padding = torch.zeros(CASE.padded_vocab)
    padding[CASE.vocab_size:] = -1e30  # padded columns are not tokens
    padding = distribute_tensor(padding, mesh, [Shard(0)])
    decayed = [p for p in module.parameters() if p.dim() > 1]
    plain = [p for p in module.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": CASE.weight_decay},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=CASE.lr, betas=CASE.betas, eps=CASE.adam_eps, foreach=False)
    order = dataset.SampleOrder(dataset.documents(), CASE.steps * CASE.global_batch, CASE.seq_length, CASE.data_seed)
    values, gradients = {"loss": [], "grad_norm": []}, None
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = tokens = 0.0
        for first in range(0, CASE.global_batch, CASE.micro_batch):
            batch = dataset.batch(order, step * CASE.global_batch + first, CASE.micro_batch, CASE)
            ids, labels, mask, _, starts = map(torch.from_numpy, batch)
            logits = module(ids, model.allowed_positions(starts)) + padding
            labels = torch.where(mask > 0, labels.long(), -100)
            with loss_parallel():
                total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
                count = (mask > 0).sum().item()
                (total / count / (CASE.global_batch // CASE.micro_batch)).backward()
            total = total.full_tensor() if isinstance(total, DTensor) else total
            losses, tokens = losses + total.item(), tokens + count
        gradients = gradients or gradients_of(module)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), CASE.clip, foreach=False)
        values["grad_norm"].append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
        values["loss"].append(losses / tokens)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(CASE, step)
        optimizer.step()
    if rank == 0:
        np.savez(found, **gradients, **{f"{key}s of steps": np.array(value) for key, value in values.items()})
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    written = json.loads((HERE / "values" / f"{CASE.name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder) / "found.npz"
        multiprocessing.spawn(train, (ranks, f"{folder}/meeting", found), nprocs=ranks)
        found = dict(np.load(found))
    apart = {}
    for key in ("loss", "grad_norm"):
        apart[key] = max(abs(a / b - 1) for a, b in zip(found.pop(f"{key}s of steps"), written[key]))
    with np.load(HERE / "values" / f"{CASE.name}.npz") as gradients:
        assert set(gradients.files) == set(found), set(gradients.files) ^ set(found)
        apart["gradient"] = max(float(np.linalg.norm(found[name] - gradients[name]) / np.linalg.norm(gradients[name]))
                                for name in found)
    print(f"{CASE.name} on {ranks} tensor-parallel ranks: " + ", ".join(f"{key} off by {value:.1e}" for key, value in apart.items()))
    return 1 if any(not value <= TOLERANCE[key] for key, value in apart.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
