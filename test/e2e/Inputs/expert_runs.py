#!/usr/bin/env python3
"""Trains small recipes with experts. Needs only Python.

    expert_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  strategies, groups of data-parallel ranks, ranks with other experts, stages of a pipeline and their schedules, microbatches,
              recomputation, routers, the expert of all tokens and its gate, layers without experts, dropout, losses per token; compared with one
              rank: losses of 5 steps, and gradients of the first, within 1e-5 relative. Each pair of values occurs in a row; SEED=n (1 by default) draws the rows.
              Some of them run unless SHARDC_LONG=1.
    divided   tensor-parallel ranks with sequence parallelism, context-parallel ones, ranks with other experts and with other
              parts of them, in any combination with these; compared with one rank: likewise
    sinkhorn  Sinkhorn's choice, with ranks, stages and recomputation that leave a rank its tokens; compared with one rank: likewise; slices of
              sequences with any ranks with other experts
    skewed    1, 2 and 4 ranks with other experts, in steps in which all tokens of a layer go to one expert, and one rank
              likewise, losses and norms
    told      stages of a pipeline, some of them without experts; compared with one rank: gradients, with any balance, and what runs report;
              the latter with tensor- and context-parallel ranks, too. Every second pair of balance and stages runs unless
              SHARDC_LONG=1
    same      any schedule, selective and full recomputation, a process for each rank, and all rows that there is room for made
              and exchanged, to the bit; each kind of recomputation under one of three layouts unless SHARDC_LONG=1
    norm      squares of experts' gradients summed by the products that make them, and by themselves, with one and three microbatches,
              on one rank and on ranks with other experts, in each precision: losses to the bit, 1e-12 relative in the norm
    layouts   saved under one layout, loaded under another: weights and moments to the bit
    resumed   the same where experts have biases and are chosen by one, in each format of checkpoints: losses to the bit
"""

import math
import os
import random
import subprocess
import sys
import tempfile

from compare_runs import FULL, LONG, STRATEGIES, close, compare_orders, equal, fsdp2_settings, run_check, strategy_settings
from hybrid_runs import SAVED, TOLERANCE, batch, compare, compare_layouts, with_gradients
from matrix import name_of, table
from pipeline_runs import SCHEDULES

ROWS = 5  # of the table, unless all run
DRAWN = 3000  # rows that the table is chosen from
MICRO_BATCH, STEPS = 2, 5


def modules(*names):
    return ["model.recompute_granularity=selective", f"model.recompute_modules=[{', '.join(names)}]"]


RECOMPUTE = {"none": [], "activation": modules("moe_act"), "experts": modules("moe", "layernorm"),
             "shared": modules("shared_experts", "core_attn"), "mlp": modules("mlp", "moe_act"), "full": FULL}
ROUTERS = {
    "softmax": [],
    "biases": ["model.moe_router_pre_softmax=true", "model.moe_router_topk_scaling_factor=1.5", "model.add_bias_linear=true"],
    "sigmoid": ["model.moe_router_score_function=sigmoid", "model.moe_input_jitter_eps=0.1"],
    "groups": ["model.moe_router_score_function=sigmoid", "model.num_moe_experts=8", "model.moe_router_num_groups=4",
               "model.moe_router_group_topk=2"],
    "one": ["model.moe_router_topk=1", "model.moe_router_pre_softmax=true"],
    "input": ["model.moe_router_topk=1", "model.moe_router_score_function=sigmoid", "model.moe_apply_probs_on_input=true"],
}
BIAS = ["model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true", "model.moe_router_bias_update_rate=0.1"]
BALANCE = {
    "none": [],
    "losses": ["model.moe_router_load_balancing_type=[aux_loss, seq_aux_loss]", "model.moe_aux_loss_coeff=[0.5, 0.3]",
               "model.moe_z_loss_coeff=0.02"],
    "bias": [*BIAS, "model.moe_aux_loss_coeff=[0.2]"],
    "capacity": ["model.moe_expert_capacity_factor=0.8", "model.moe_aux_loss_coeff=[0.2]"],
    "position": [*BIAS, "model.moe_expert_capacity_factor=0.8", "model.moe_token_drop_policy=position"],
}
AXES = {
    "strategy": (*STRATEGIES, "torch_fsdp2"),
    "data": (1, 2, 4),
    "experts": (1, 2, 4),  # ranks that have other experts
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),  # of state between instances
    "stages": (1, 2),
    "schedule": ("1f1b", "interleaved", "zero_bubble"),
    "microbatches": (1, 4),
    "recompute": tuple(RECOMPUTE),
    "router": tuple(ROUTERS),
    "balance": tuple(BALANCE),
    "shared": (False, True),
    "gate": (False, True),  # on the expert of all tokens
    "layers": ("experts", "mixed"),
    "dropout": (False, True),
    "per_token": (False, True),
}


def is_valid(row):
    """Whether no rule refuses the values of the row that are already chosen."""
    if row.get("instances", 1) > 1 and (row.get("data", 2) < 2 or row.get("strategy") in ("no_shard", "torch_fsdp2")):
        return False
    if row.get("outer", "no_shard") == "optim" and (row.get("instances", 2) == 1 or row.get("strategy") != "optim_grads_params"):
        return False
    if row.get("stages", 1) > 1 and row.get("strategy") == "torch_fsdp2":
        return False
    if row.get("schedule", "1f1b") != "1f1b" and (row.get("stages", 2) == 1 or row.get("microbatches", 4) == 1):
        return False
    if row.get("stages", 1) > 1 and row.get("balance", "none") != "none":  # see check_told
        return False
    if row.get("experts", 1) > 1 and (row.get("data", 4) % row["experts"] or row.get("strategy") == "torch_fsdp2"):
        return False
    if row.get("shared", False) and row.get("router", "softmax") == "biases":  # the expert of all tokens has none
        return False
    if row.get("gate", False) and not row.get("shared", True):
        return False
    return not (row.get("recompute") == "shared" and not row.get("shared", True))


def layout(strategy="no_shard", data=1, experts=1, instances=1, outer="no_shard", stages=1, schedule="1f1b", tensor=1, context=1, parts=1,
           exchange="p2p"):
    ranks = data * stages * tensor * context
    if strategy == "torch_fsdp2":
        found = [*fsdp2_settings(True, ranks), "checkpoint.ckpt_format=torch_dist"]
    else:
        found = [*strategy_settings(strategy), f"cluster.gpus_per_node={ranks}"]
    return [*found, *SCHEDULES[schedule], f"ddp.num_distributed_optimizer_instances={instances}", f"ddp.outer_dp_sharding_strategy={outer}",
            f"model.pipeline_model_parallel_size={stages}", f"model.expert_model_parallel_size={experts}", f"train.micro_batch_size={MICRO_BATCH}",
            *[f"model.tensor_model_parallel_size={tensor}", "model.sequence_parallel=true"] * (tensor > 1),
            *[f"model.expert_tensor_parallel_size={parts}"] * (tensor > 1 or parts > 1),
            *[f"model.context_parallel_size={context}", f"model.cp_comm_type=[{exchange}]"] * (context > 1)]


def model(row):
    shared = ["model.moe_shared_expert_intermediate_size=48"] * row["shared"] + ["model.moe_shared_expert_gate=true"] * row["gate"]
    mixed = ["model.moe_layer_freq=[0, 1]"] * (row["layers"] == "mixed")
    dropout = ["model.hidden_dropout=0.1"] * row["dropout"]
    return ["model.num_layers=4", *ROUTERS[row["router"]], *BALANCE[row["balance"]], *shared, *mixed, *dropout,
            f"model.calculate_per_token_loss={str(row['per_token']).lower()}",
            f"train.global_batch_size={MICRO_BATCH * row['data'] * row['microbatches']}", f"train.train_iters={STEPS}"]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS, DRAWN)
    for row in rows:
        expected = with_gradients(runner, *model(row), *layout())
        own = layout(*(row[axis] for axis in ("strategy", "data", "experts", "instances", "outer", "stages", "schedule")))
        compare(name_of(row), with_gradients(runner, *model(row), *own, *RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


# Where ranks divide layers with experts.
DIVIDED = {
    "tensor": (1, 2, 4),
    "context": (1, 2),
    "experts": (1, 2, 4),
    "parts": (1, 2, 4),  # of each expert
    **{axis: AXES[axis] for axis in ("strategy", "instances", "outer", "stages", "schedule", "microbatches", "recompute", "router", "balance",
                                     "shared", "gate", "layers", "dropout", "per_token")},
    "data": (1, 2),
    "exchange": ("p2p", "all_gather"),
    "average": (False, True),
}


def is_divided(row):
    if not is_valid({**row, "experts": 1}):
        return False
    tensor, context, data, experts, parts = (row[axis] for axis in ("tensor", "context", "data", "experts", "parts"))
    if row["strategy"] == "torch_fsdp2" and max(tensor, context, experts, parts) > 1:
        return False
    if context == 1 and row["exchange"] != "p2p":
        return False
    if row["average"] and (row["per_token"] or row["strategy"] in ("no_shard", "torch_fsdp2")):
        return False
    if row["balance"] in ("capacity", "position") and tensor * context > 1: # of the tokens of a rank
        return False
    return tensor * context * data % (experts * parts) == 0 and are_folded((tensor, context, data), (parts, experts))


def are_folded(*chains):
    cuts = [[math.prod(chain[:i + 1]) for i in range(len(chain))] for chain in chains]
    return all(a % b == 0 or b % a == 0 for a in cuts[0] for b in cuts[1])


def check_divided(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(DIVIDED, is_divided, draw, None if LONG else ROWS, DRAWN)
    for row in rows:
        expected = with_gradients(runner, *model(row), *layout())
        own = layout(**{axis: row[axis] for axis in ("strategy", "data", "experts", "instances", "outer", "stages", "schedule", "tensor", "context",
                                                     "parts", "exchange")})
        average = ["ddp.average_in_collective=true"] * row["average"]
        compare(name_of(row), with_gradients(runner, *model(row), *own, *average, *RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


def check_sinkhorn(runner):
    chosen = ["model.moe_router_load_balancing_type=[sinkhorn]", "model.moe_aux_loss_coeff=[0.0]", f"train.train_iters={STEPS}"]
    batch_of_8 = [*chosen, "train.global_batch_size=8"]
    one = with_gradients(runner, *batch_of_8, *layout())
    compare("stages", with_gradients(runner, *batch_of_8, *layout(stages=2), *RECOMPUTE["experts"]), one)
    compare("ranks with other experts", with_gradients(runner, *batch_of_8, *layout("optim_grads_params", 4, 2), *FULL), one)
    # A microbatch has two sequences, one for each of two tensor-parallel ranks.
    single = with_gradients(runner, *batch_of_8, "model.moe_router_topk=1", *layout(), "train.micro_batch_size=1")
    divided = layout("optim", 2, 2, tensor=2, parts=2)
    compare("sequences of ranks", with_gradients(runner, *batch_of_8, "model.moe_router_topk=1", *divided, *FULL), single)
    slices = runner.run_plan(*batch_of_8, *layout(tensor=2, context=2))
    close("slices", runner.run_plan(*batch_of_8, *layout(tensor=2, context=2, experts=4), *FULL), slices, tolerance=TOLERANCE)


def check_skewed(runner):
    """With a bias that grows by 100 per update, all tokens go to the experts that had the fewest."""
    tokens = 8 * 32
    settings = ["model.moe_router_topk=1", *BIAS, "model.moe_router_bias_update_rate=100.0", "train.global_batch_size=8",
                "train.train_iters=6"]
    expected = None
    for data, experts in ((1, 1), (4, 1), (2, 2), (4, 2), (4, 4)):
        own = layout("optim_grads_params", data, experts)
        records = runner.metrics(["shardc", "run", runner.recipe, *runner.arguments([*settings, *own])])
        if not any(record["expert_rows_most"] == tokens and record["expert_rows_least"] == 0 for record in records):
            sys.exit(f"no expert has had all {tokens} tokens of a step")
        found = [(record["loss"], record["grad_norm"]) for record in records]
        expected = expected or found
        close(f"{data} ranks, {experts} with other experts", found, expected, tolerance=TOLERANCE)
        norms = max(abs(x / y - 1) for (_, x), (_, y) in zip(found, expected))
        if norms > TOLERANCE:
            sys.exit(f"norms differ by {norms:.3e}")
    check_room(runner, settings)


def check_room(runner, skewed):
    """Slots with room for less than all rows change no number where it is enough, and end the run where it is not."""
    capacity = "model.moe_expert_rank_capacity_factor="
    even = ["train.global_batch_size=8", f"train.train_iters={STEPS}"]
    for own in (layout("optim_grads_params", 2, 2), layout("optim", 1, 2, tensor=2, context=2, parts=2)):
        compare("with less room", with_gradients(runner, *even, *own, capacity + "1.9"), with_gradients(runner, *even, *own))
    # A rank has 64 tokens of a step, of which the even share of 4 ranks is 16, and the skewed ones all.
    for balance in ([], ["validation.eval_interval=2", "validation.eval_iters=1"]):
        short = runner.arguments([*skewed, *balance, *layout("optim_grads_params", 4, 4), capacity + "1.5"])
        ended = subprocess.run(["shardc", "run", runner.recipe, *short], capture_output=True, text=True, check=False)
        if ended.returncode == 0 or "[rows-without-room]" not in ended.stderr or "would have to be" not in ended.stderr:
            sys.exit(f"a slot without room did not end the run: {ended.stderr}")
    print("a slot without room ends the run")


def check_told(runner):
    told = {"load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss", "expert_rows_most", "expert_rows_least",
            "expert_imbalance"}
    global_loss = [setting.replace("aux_loss, seq_aux_loss", "aux_loss, global_aux_loss") for setting in BALANCE["losses"]]
    layouts = {"two stages": layout("no_shard", stages=2), "four stages": layout("optim", 2, 2, stages=4),
               "chunks": layout("no_shard", stages=2, schedule="interleaved"),
               "zero bubble": layout("optim_grads", 2, 2, stages=2, schedule="zero_bubble")}
    balances = {**BALANCE, "global": global_loss}
    pairs = [(balance, name) for i, balance in enumerate(balances) for j, name in enumerate(layouts)
             if (LONG or (i + j) % 2 == 0) and (balance != "global" or name in ("two stages", "chunks"))]  # of one data-parallel rank
    known = {}
    for balance, name in pairs:
        of_run = ["model.num_layers=4", "model.moe_layer_freq=[0, 1]" if name == "chunks" else "model.moe_layer_freq=[0, 0, 1, 1]",
                  *balances[balance], "train.global_batch_size=8", f"train.train_iters={STEPS}"]
        one_rank = [*of_run, *layout()]
        if tuple(one_rank) not in known:
            known[tuple(one_rank)] = with_gradients(runner, *one_rank), runner.told(told)
        gradients, tells = known[tuple(one_rank)]
        own = [*of_run, *layouts[name]]
        compare(f"{name}, {balance}", with_gradients(runner, *own), gradients)
        need_told(f"{name}, {balance}", runner.told(told), tells)

    for balance in ("losses", "bias"):
        of_run = [*BALANCE[balance], "train.global_batch_size=8", f"train.train_iters={STEPS}"]
        expected = told_by(runner, [*of_run, *layout()], told)
        for axes in ({"tensor": 2}, {"data": 2, "experts": 4, "tensor": 2}, {"tensor": 2, "context": 2, "parts": 2}):
            need_told(f"{axes}, {balance}", told_by(runner, [*of_run, *layout(**axes)], told), expected)
    of_run = [*global_loss, "train.global_batch_size=8", f"train.train_iters={STEPS}"]  # of which each data-parallel rank has its own
    for axes in ({"tensor": 2}, {"context": 2, "tensor": 2, "experts": 4}):
        compare(f"{axes}, global", with_gradients(runner, *of_run, *layout(**axes)), with_gradients(runner, *of_run, *layout()))


def told_by(runner, settings, told):
    runner.run(*settings)
    return runner.told(told)


def need_told(name, runs, expected):
    for found, wanted in zip(runs, expected, strict=True):
        apart = [key for key in wanted if abs(found[key] - wanted[key]) > TOLERANCE * abs(wanted[key])]
        if apart or set(found) != set(wanted):
            sys.exit(f"{name}: runs tell other values of {apart or set(found) ^ set(wanted)}")
    print(f"{name}: runs tell the same of {', '.join(expected[0])}")


def check_same(runner):
    settings = [*BALANCE["losses"], *BIAS, "model.moe_expert_capacity_factor=0.9", "train.global_batch_size=8", "train.train_iters=4", *layout("optim_grads_params", 2),
                "model.moe_shared_expert_intermediate_size=48", "validation.eval_interval=2", "validation.eval_iters=2"]
    kinds = list(RECOMPUTE.items())
    first, second, third = (kinds, kinds, kinds) if LONG else (kinds[0::3], kinds[1::3], kinds[2::3])
    compare_evaluated(runner, settings, dict(first))
    print("ranks with other experts")
    compare_evaluated(runner, [*settings, *layout("optim_grads_params", 4, experts=2)], dict(second))
    print("and parts of them, of tensor-parallel ranks with slices")
    compare_evaluated(runner, [*settings, *layout("optim_grads_params", 1, experts=2, tensor=2, context=2, parts=2)], dict(third))


def compare_evaluated(runner, settings, recompute):
    expected = runner.run_plan(*settings)
    without = [each for each in settings if not each.startswith("validation.")]
    equal("without evaluations, which move no bias", expected, runner.run_plan(*without))
    equal("with rows that are not there", expected, runner.run_plan(*settings, compile_options=["--disable-pass=count-rows"]))
    compare_orders(runner, settings, recompute)


def check_norm(runner):
    bf16, fp16 = ["mixed_precision=bf16_mixed"], ["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=1024"]
    cases = {"one rank": [], "one rank, bf16": bf16, "one rank, bf16 gradients": [*bf16, "ddp.grad_reduce_in_fp32=false"],
             "one rank, fp16": fp16, "ranks with other experts": layout("optim_grads_params", 2, experts=2),
             "parts of experts": layout(tensor=2, parts=2)}
    for name, settings in cases.items():
        for microbatches in (1, 3):
            ranks = 2 if "ranks" in name else 1
            of_all = [*layout(), *settings, f"train.global_batch_size={MICRO_BATCH * ranks * microbatches}", f"train.train_iters={STEPS}"]
            found = runner.run_plan(*of_all)
            if runner.plan_text().count(" = grouped_matmul_bwd_squares ") != 4:
                sys.exit(f"{name}: not all products square the gradients of experts")
            expected = runner.run_plan(*of_all, compile_options=["--disable-pass=fuse-norm-into-products"])
            if "_squares " in runner.plan_text().replace("= sum_squares ", ""):
                sys.exit(f"{name}: the other plan has products that square, too")
            equal(f"{name}, {microbatches} microbatches, losses", [loss for loss, _ in found], [loss for loss, _ in expected])
            worst = max(abs(x / y - 1) for (_, x), (_, y) in zip(found, expected))
            if worst > 1e-12:
                sys.exit(f"{name}: norms differ by {worst:.3e}")


def check_layouts(runner):
    def under(*axes):
        return [*layout(*axes), *strategy_settings("optim_grads_params")[:2]]

    def with_parts(**axes):
        return [*layout("optim_grads_params", **axes), *strategy_settings("optim_grads_params")[:2]]

    # With no padding of the vocabulary, which tensor-parallel ranks have more of.
    runner.settings = [*runner.settings, "model.vocab_size=256"]
    layouts = {"one rank": under("optim_grads_params"), "FSDP on 2": under("optim_grads_params", 2),
               "FSDP on 3": under("optim_grads_params", 3), "2 ranks with other experts": under("optim_grads_params", 2, 2),
               "4 ranks, 2 with other experts": under("optim_grads_params", 4, 2),
               "2 parts of experts": with_parts(tensor=2, parts=2),
               "2 parts of experts, 2 ranks with other ones": with_parts(data=2, experts=2, tensor=2, parts=2),
               "4 ranks with other experts, of 2 layers' parts": with_parts(data=2, experts=4, tensor=2),
               "slices": with_parts(data=1, experts=2, context=2)}
    compare_layouts(runner, layouts, ("one rank", "FSDP on 3", "4 ranks, 2 with other experts", "2 parts of experts, 2 ranks with other ones"))


def check_resumed(runner):
    """The bias that experts are chosen by moves by 0.1 a step, so that other steps follow where it is lost."""
    def under(strategy, *axes, form="torch_dist"):
        return [*layout(strategy, *axes), *BIAS, "model.add_bias_linear=true", f"checkpoint.ckpt_format={form}"]

    fsdp = strategy_settings("optim_grads_params")[:2]
    layouts = {"fsdp_dtensor": [*under("optim_grads_params", 2, form="fsdp_dtensor"), *fsdp],
               "fsdp_dtensor, 2 ranks with other experts": [*under("optim_grads_params", 4, 2, form="fsdp_dtensor"), *fsdp],
               "torch_dist": under("optim", 3),
               "torch_dcp": under("torch_fsdp2", 3, form="torch_dcp")}
    in_background = {"fsdp_dtensor": ["checkpoint.async_save=true"]}
    compare_layouts(runner, layouts, tuple(layouts), in_background, ["checkpoint.convert_on_load=true"])
    stages = [*under("no_shard", 2, 2, 1, "no_shard", 2), "model.moe_layer_freq=[0, 1]", *batch(8, steps=SAVED + 2)]
    with tempfile.TemporaryDirectory() as folder:
        runner.run(*stages, f'checkpoint.save="{folder}"', f"train.exit_interval={SAVED}")
        equal("two stages, the first without experts", runner.run(*stages)[SAVED:], runner.run(*stages, f'checkpoint.load="{folder}"'))


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "divided": check_divided, "sinkhorn": check_sinkhorn, "skewed": check_skewed, "told": check_told, "same": check_same,
               "norm": check_norm,
               "layouts": check_layouts, "resumed": check_resumed})
