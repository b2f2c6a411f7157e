"""The training loop of Megatron-LM in one process. Data-parallel ranks are an inner loop."""

import math
import re

import torch

from . import dataset, model, transformer


def learning_rate(case, applied):
    """Megatron's cosine schedule with linear warmup after `applied` updates."""
    if case.warmup > 0 and applied <= case.warmup:
        return case.warmup_init + (case.lr - case.warmup_init) * applied / case.warmup
    if applied > case.decay:
        return case.min_lr
    ratio = (applied - case.warmup) / (case.decay - case.warmup)
    return case.min_lr + 0.5 * (math.cos(math.pi * ratio) + 1) * (case.lr - case.min_lr)


def loraplus(case, trained):
    """PEFT's optimizer of LoRA+. It tells second factors by their names there."""
    from peft.optimizers import create_loraplus_optimizer

    module = torch.nn.Module()
    for name, value in trained.items():
        module.register_parameter(name.replace("linear_out", "lora_B").replace(".", "_"), value)
    optimizer = create_loraplus_optimizer(
        module, torch.optim.AdamW, lr=case.lr, loraplus_lr_ratio=case.lr_ratio, loraplus_weight_decay=case.weight_decay,
        betas=case.betas, eps=case.adam_eps, foreach=False,
    )
    for group in optimizer.param_groups:
        group["times"] = group["lr"] / case.lr
    return optimizer


class Run:
    """One training of a case. `dtype` is the type of weights and activations; masters are fp64 or fp32.

    `wire` is the type in which a rank's accumulated gradient is sent. Sums over ranks use the masters' type, in rank
    order.
    """

    def __init__(self, case, order, dtype, ranks=1, wire=None, native=False):
        self.case, self.order, self.ranks, self.wire = case, order, ranks, wire
        self.numerics = model.Numerics(dtype, native)
        inner = self.numerics.inner
        self.masters = {
            n: torch.nn.Parameter(torch.from_numpy(v).to(inner))
            for n, v in model.initial_values(case).items()
        }
        for name, master in self.masters.items():
            master.requires_grad_(not any(re.fullmatch(each, name) for each in case.frozen))
        self.trained = {n: p for n, p in self.masters.items() if p.requires_grad}
        matrices = {}
        if case.muon:
            from . import muon  # needs further packages

            matrices = {n: p for n, p in self.trained.items() if muon.takes(n, p)}
        others = [p for n, p in self.trained.items() if n not in matrices]
        decayed = [p for p in others if p.dim() > 1]
        plain = [p for p in others if p.dim() == 1]
        groups = [
            {"params": decayed, "weight_decay": case.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizers = [muon.Muon(matrices, muon.Described.of(case))] if matrices else []
        if case.lion:
            from lion_pytorch import Lion

            self.optimizers.append(Lion(groups, lr=case.lr, betas=case.betas))
        elif case.lr_ratio:
            self.optimizers.append(loraplus(case, self.trained))
        else:
            self.optimizers.append(torch.optim.AdamW(
                groups, lr=case.lr, betas=case.betas, eps=case.adam_eps, foreach=False
            ))
        self.loss, self.grad_norm, self.lr, self.tokens, self.further = [], [], [], [], []
        self.first_gradients = None

    def microbatch(self, first):
        """The loss sum, token count and gradients (in the weights' type) of one microbatch."""
        case, dtype = self.case, self.numerics.dtype
        weights = {
            n: p.detach().to(dtype).requires_grad_(p.requires_grad) for n, p in self.masters.items()
        }
        tokens, labels, mask, positions, starts = map(
            torch.from_numpy, dataset.batch(self.order, first, case.micro_batch, case)
        )
        mask = mask.to(self.numerics.inner)
        losses, further = model.losses(
            case, weights, self.numerics, tokens, labels, mask, positions, starts
        )
        total, count = losses.sum(), mask.sum()
        microbatches = case.global_batch // case.micro_batch // self.ranks
        objective = total if case.per_token else total / count / microbatches
        if case.balance:
            assert not case.per_token
            objective = objective + transformer.balance(case, dtype) / microbatches
        means = [own.sum() / own_mask.sum().clamp(min=1) for own, own_mask in further]
        for mean in means:  # over fewer tokens, but with equal weight
            weight = case.prediction_weight / case.predictions
            objective = objective + weight * mean * (count if case.per_token else 1 / microbatches)
        objective.backward()
        told = [mean.item() for mean in means]
        return total.item(), count.item(), told, {n: weights[n].grad for n in self.trained}

    def step(self, number):
        case = self.case
        sums, loss_sum, token_sum = None, 0.0, 0.0
        further = [0.0] * case.predictions
        for rank in range(self.ranks):
            accumulated = None
            for first in range(
                rank * case.micro_batch, case.global_batch, self.ranks * case.micro_batch
            ):
                loss, count, told, grads = self.microbatch(number * case.global_batch + first)
                part = case.micro_batch / case.global_batch
                further = [mean + part * own for mean, own in zip(further, told)]
                loss_sum, token_sum = loss_sum + loss, token_sum + count
                grads = {n: self.numerics.up(g) for n, g in grads.items()}
                accumulated = (
                    grads
                    if accumulated is None
                    else {n: accumulated[n] + g for n, g in grads.items()}
                )
            if not case.per_token:
                accumulated = {n: g / self.ranks for n, g in accumulated.items()}
            if self.wire is not None:
                accumulated = {n: self.numerics.up(g.to(self.wire)) for n, g in accumulated.items()}
            sums = accumulated if sums is None else {n: sums[n] + g for n, g in accumulated.items()}
        for name, master in self.trained.items():
            master.grad = sums[name] / token_sum if case.per_token else sums[name]
        if self.first_gradients is None:
            self.first_gradients = {
                n: p.grad.double().numpy().copy() for n, p in self.trained.items()
            }
        self.update(number)
        self.loss.append(loss_sum / token_sum)
        self.further.append(further)
        self.tokens.append(int(token_sum))

    def update(self, number):
        """Clips by the global norm, records the norm before clipping, and runs the optimizers."""
        norm = torch.nn.utils.clip_grad_norm_(self.trained.values(), self.case.clip, foreach=False)
        self.grad_norm.append(norm.item())
        self.lr.append(learning_rate(self.case, number))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr[-1] * group.get("times", 1)
            optimizer.step()
        if self.case.narrow_moments:
            for state in self.optimizers[-1].state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name].copy_(state[name].float().bfloat16())

    def train(self):
        for number in range(self.case.steps):
            self.step(number)
        return self

    def parameter_sums(self):
        """The norm and sum of each parameter's current value."""
        return {
            n: {"norm": p.detach().double().norm().item(), "sum": p.detach().double().sum().item()}
            for n, p in self.masters.items()
        }
