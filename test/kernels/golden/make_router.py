#!/usr/bin/env python3
"""Writes router.txt: what Megatron-Core's own functions of routers give on the CPU, with gradients by autograd. The lines are those
of golden.txt.

    PYTHONPATH=/path/to/Megatron-LM python make_router.py > router.txt

router.txt was made with Megatron-LM at d98e8a64ddf34856e74b24714e3bedb2f5a39553 (Megatron-Core 0.20.0) and torch 2.15.0.
"""

import contextlib
import io
import tempfile
import types

import torch

with contextlib.redirect_stdout(io.StringIO()): # make_golden prints its own cases
    from megatron.core.transformer.moe import moe_utils as upstream
    from megatron.core.transformer.moe.router import TopKRouter

    from make_golden import Case, leaf

SCORES = ["softmax", "sigmoid", "sqrtsoftplus"]
T, E = 24, 8
torch.manual_seed(2026)


def logits_of(rows=T):
    return torch.randn(rows, E) * 2


def ids_of(probs, routing_map, k):
    """Those chosen, by falling weight, as no two weights of these inputs are equal."""
    order = torch.where(routing_map, probs, torch.tensor(float("-inf"))).argsort(dim=1, descending=True)
    return order[:, :k].to(torch.int32)


def routing(name, k, score="softmax", pre=False, groups=None, group_topk=None, scale=None, bias=None):
    logits = leaf(logits_of())
    probs, routing_map = upstream.topk_routing_with_score_function(
        logits, k, use_pre_softmax=pre, num_groups=groups, group_topk=group_topk, scaling_factor=scale,
        score_function=score, expert_bias=bias)
    assert (routing_map.sum(1) == k).all()
    ids = ids_of(probs.detach(), routing_map, k)
    dweights = torch.randn(T, k)
    weights = probs.gather(1, ids.long())
    weights.backward(dweights)
    attrs = {"topk": k, "score": SCORES.index(score), "pre_softmax": pre, "expert_groups": groups or 0,
             "group_topk": group_topk or 0, "scale": scale or 1.0}
    if bias is None: # with a bias, experts are chosen in another order than that of their weights
        Case(name, "router_topk", **attrs).given(logits).wanted(ids, 0, torch.int32).wanted(weights, 2e-6)
    else:
        chosen = torch.where(routing_map, scores_of(logits, score) + bias, torch.tensor(float("-inf")))
        ids = chosen.argsort(dim=1, descending=True)[:, :k].to(torch.int32)
        Case(name, "router_topk", **attrs).given(logits).given(bias).wanted(ids, 0, torch.int32) \
            .wanted(probs.gather(1, ids.long()), 2e-6)
        ids = ids_of(probs.detach(), routing_map, k)
    Case(name + "_bwd", "router_topk_bwd", **attrs).given(dweights).given(logits).given(ids).wanted(logits.grad, 4e-6)


def by_sinkhorn(name, k, logits):
    """Those of a training step: upstream's evaluations choose by their weights."""
    logits = leaf(logits)
    router = types.SimpleNamespace(config=types.SimpleNamespace(moe_aux_loss_coeff=0), topk=k, training=True)
    probs, routing_map = TopKRouter.sinkhorn_load_balancing(router, logits)
    assert (routing_map.sum(1) == k).all()
    balanced = upstream.sinkhorn(logits.detach())
    ids = ids_of(balanced, routing_map, k)
    weights, dweights = probs.gather(1, ids.long()), torch.randn(logits.shape[0], k)
    weights.backward(dweights)
    attrs = {"topk": k, "score": SCORES.index("sigmoid" if k == 1 else "softmax"), "pre_softmax": True}
    Case(name, "router_sinkhorn", **attrs).given(logits).wanted(ids, 0, torch.int32).wanted(weights, 2e-6)
    Case(name + "_bwd", "router_topk_bwd", **attrs).given(dweights).given(logits).given(ids).wanted(logits.grad, 4e-6)


def scores_of(logits, score):
    logits = logits.detach()
    return logits.sigmoid() if score == "sigmoid" else torch.nn.functional.softplus(logits).sqrt()


def loads(ids, sequences):
    per = ids.reshape(sequences, -1).long()
    return torch.stack([torch.bincount(row, minlength=E) for row in per]).float()


def balance(score, sequences, coeff, k=2):
    """aux_loss of one sequence, seq_aux_loss of several, which upstream folds into the experts. The loss is linear in the shares
    of rows, so that of one row is the loss of its shares alone."""
    logits = leaf(logits_of())
    routing_map, shares = upstream.compute_routing_scores_for_aux_loss(logits, k, score)
    ids = ids_of(shares.detach(), routing_map, k)
    rows = T // sequences

    def loss_of(shares):
        folded = shares.reshape(sequences, rows, E).transpose(0, 1).reshape(rows, -1)
        folded_map = routing_map.reshape(sequences, rows, E).transpose(0, 1).reshape(rows, -1)
        return upstream.switch_load_balancing_loss_func(
            probs=folded, tokens_per_expert=folded_map.sum(0), total_num_tokens=rows, topk=k, num_experts=E,
            moe_aux_loss_coeff=coeff) / sequences

    losses = [loss_of(shares * (torch.arange(T) == t).unsqueeze(1)) for t in range(T)]
    loss_of(shares).backward()
    name, attrs = f"aux_{score}_{sequences}", {"score": SCORES.index(score), "scale": coeff * E / (k * rows * rows * sequences)}
    Case(name + "_load", "expert_load").given(ids).wanted(loads(ids, sequences), 0)
    Case(name, "router_loss", **attrs).given(logits).given(loads(ids, sequences)).wanted(torch.stack(losses), 2e-8)
    Case(name + "_bwd", "router_loss_bwd", **attrs).given(logits).given(loads(ids, sequences)).wanted(logits.grad, 2e-8)


def z_loss(coeff):
    logits = leaf(logits_of())
    upstream.z_loss_func(logits, coeff).backward()
    losses = torch.stack([upstream.z_loss_func(row.unsqueeze(0), coeff / T) for row in logits])
    Case("z_loss", "router_z_loss", scale=coeff / T).given(logits).wanted(losses, 1e-8)
    Case("z_loss_bwd", "router_z_loss_bwd", scale=coeff / T).given(logits).wanted(logits.grad, 1e-8)


def dropped(factor, k=2):
    """By weights; upstream chooses by position with torch.topk of equal numbers, which may choose any."""
    logits = logits_of()
    logits[:, 0] += 2
    probs, routing_map = upstream.topk_routing_with_score_function(logits, k)
    ids = ids_of(probs, routing_map, k)
    _, kept_map = upstream.apply_router_token_dropping(probs, routing_map, k, factor, drop_policy="probs")
    kept = torch.where(kept_map.gather(1, ids.long()), ids, torch.tensor(-1, dtype=torch.int32))
    assert (kept == -1).any()
    Case(f"drop_{factor}", "router_drop", experts=E, capacity_factor=factor).given(ids).given(probs.gather(1, ids.long())) \
        .wanted(kept, 0, torch.int32)


def bias_update():
    load, bias = torch.randint(0, 9, (3, E)).float(), torch.randn(3, E)
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=1, rank=0)
        group = torch.distributed.group.WORLD
        updated = upstream.get_updated_expert_bias(load.clone(), bias, 0.125, tp_dp_cp_group=group)
        torch.distributed.destroy_process_group()
    Case("bias", "expert_bias.update", rate=0.125, experts=E).given(bias).given(load).updated(0, updated, 1e-7)


def main():
    for pre in (False, True):
        routing(f"softmax_{int(pre)}", 3, pre=pre, scale=1.5)
        routing(f"softmax_{int(pre)}_groups", 4, pre=pre, groups=4, group_topk=2)
    routing("softmax_1_one", 1, pre=True)
    for score in SCORES[1:]:
        routing(score, 3, score, scale=2.5)
        routing(score + "_one", 1, score)
        routing(score + "_bias", 2, score, bias=torch.randn(E))
        routing(score + "_bias_groups", 4, score, groups=4, group_topk=2, bias=torch.randn(E))
    for score in SCORES:
        balance(score, 1, 0.01)
        balance(score, 3, 0.1)
    z_loss(0.001)
    for factor in (0.5, 1.0):
        dropped(factor)
    bias_update()
    by_sinkhorn("sinkhorn", 2, logits_of())
    by_sinkhorn("sinkhorn_one", 1, logits_of())
    by_sinkhorn("sinkhorn_skewed", 3, logits_of() + torch.linspace(6, -6, E)) # most rows lean to the same experts


if __name__ == "__main__":
    main()
