"""Muon from emerging_optimizers (NVIDIA-NeMo/Emerging-Optimizers), from which Megatron-Core takes it.

The variable EMERGING_OPTIMIZERS names the folder of its sources. Needs absl-py, and triton, which torch includes. Runs
in fp32 orthogonalise with its newton_schulz, with products in fp32. That function has no fp64 form, so runs in fp64
apply its steps one by one.
"""

import os
import pathlib
import sys
import types
import typing

import torch


def bare(name, **members):
    """Imports a package without its __init__, whose imports need Python 3.12."""
    module = types.ModuleType(name)
    folder = pathlib.Path(os.environ.get("EMERGING_OPTIMIZERS", ""), *name.split("."))
    module.__dict__.update({"__path__": [str(folder)], **members})
    sys.modules[name] = module


if not hasattr(typing, "override"):
    typing.override = lambda method: method
bare("emerging_optimizers")
bare("emerging_optimizers.orthogonalized_optimizers")
bare("emerging_optimizers.registry", register_optimizer=lambda name: lambda optimizer: optimizer)

from emerging_optimizers.orthogonalized_optimizers import muon_utils  # noqa: E402
from emerging_optimizers.orthogonalized_optimizers.muon import get_muon_scale_factor  # noqa: E402
from emerging_optimizers.orthogonalized_optimizers.orthogonalized_optimizer import (  # noqa: E402
    OrthogonalizedOptimizer,
)


def takes(name, param):
    """Whether Megatron updates the parameter with Muon: a matrix of neither the embedding nor the output layer."""
    return param.dim() == 2 and "word_embeddings" not in name and "output_layer" not in name


def orthogonalized(x, steps, kind):
    if x.dtype == torch.float32:
        return muon_utils.newton_schulz(x, steps, kind)
    turned = x.size(0) > x.size(1)
    y = torch.nn.functional.normalize(x.mT if turned else x, p=2, dim=(-2, -1), eps=1e-15)
    mode = "repeat_last" if kind in ("polar_express", "cans", "deepseekv4") else "cycle"
    coefficients = muon_utils._COEFFICIENT_SETS[kind]
    for a, b, c in muon_utils.get_coefficient_iterator(steps, coefficients, mode):
        y = muon_utils.newton_schulz_step(y, a, b, c)
    return y.mT if turned else y


class Described(typing.NamedTuple):
    """What an optimizer needs to know of a case."""

    lr: float
    weight_decay: float
    turns: tuple  # numbers of rows of queries, keys and values
    decoupled: bool
    precision: str
    muon: tuple
    latent: tuple = ()  # numbers of rows of a head's queries, and of its keys and values


    @classmethod
    def of(cls, case):
        turns = (case.heads // case.groups * case.head, case.head, case.head)
        latent = ((case.plain + case.rotated,), (case.plain, case.values)) if case.key_rank else ()
        return cls(case.lr, case.weight_decay, turns, True, "highest", case.muon, latent)


class Muon(OrthogonalizedOptimizer):
    """Muon for the matrices `named`. Splits rows of queries, keys and values as Megatron splits them."""

    def __init__(self, named, case):
        kind = dict(case.muon)
        self.split = list(case.turns) if kind.pop("split_qkv") else None
        self.head = case.turns[-1] if kind.pop("per_head", False) else None
        self.latent = case.latent if self.head else ()
        self.halves = kind.pop("split_fc1", False)
        self.names = {id(param): name for name, param in named.items()}
        steps, coefficients = kind.pop("num_ns_steps"), kind.pop("coefficient_type")
        mode, extra = kind.pop("scale_mode"), kind.pop("extra_scale_factor")
        super().__init__(
            list(named.values()),
            lr=case.lr,
            momentum=kind.pop("momentum"),
            nesterov=kind.pop("nesterov"),
            weight_decay=case.weight_decay,
            weight_decay_method="decoupled" if case.decoupled else "l2",
            fp32_matmul_prec=case.precision,
            scaled_orthogonalize_fn=lambda x: orthogonalized(x, steps, coefficients)
            * get_muon_scale_factor(x.size(0), x.size(1), mode=mode)
            * extra,
        )
        assert not kind, kind

    def apart(self, name, rows):
        """Numbers of rows of matrices that lie one after the other; empty if the parameter is not such."""
        if self.halves and "linear_fc1" in name:
            return [rows // 2] * 2
        if self.head and "linear_qkv" in name:
            return [self.head] * (rows // self.head)
        for ends, turn in zip((("linear_q_up_proj", "linear_q_proj"), ("linear_kv_up_proj",)), self.latent):
            if any(end in name for end in ends):
                return list(turn) * (rows // sum(turn))
        return []

    def orthogonalize(self, p, grad, **kwargs):
        if apart := self.apart(self.names[id(p)], grad.shape[0]):
            return torch.cat([self.scaled_orthogonalize_fn(g) for g in torch.split(grad, apart)])
        if self.split is None or "linear_qkv" not in self.names[id(p)]:
            return self.scaled_orthogonalize_fn(grad)
        columns, groups = grad.shape[-1], grad.shape[0] // sum(self.split)
        parts = torch.split(grad.view(groups, sum(self.split), -1), self.split, dim=1)
        parts = [self.scaled_orthogonalize_fn(g.reshape(-1, columns)) for g in parts]
        parts = [g.view(groups, -1, columns) for g in parts]
        return torch.cat(parts, dim=1).view(grad.shape)
