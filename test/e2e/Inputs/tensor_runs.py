#!/usr/bin/env python3
"""Trains small recipes with layers cut among tensor-parallel ranks. Needs only Python.

    tensor_runs.py CHECK RECIPE [--set path=value ...]

CHECK is the comparison to make:
    one-rank  tensor-parallel sizes, key/value groups, also fewer than ranks, sequence parallelism, rows in pieces, strategies, groups of
              data-parallel ranks, microbatches, recomputation, tied tables, losses per token; compared with one rank: losses of 5
              steps, and gradients of the first, within 1e-5 relative. Each pair of values occurs in a row; SEED=n (1 by
              default) draws the rows. Some of them run unless SHARDC_LONG=1.
    same      any schedule, selective and full recomputation, and a process for each rank to the bit
    layouts   saved under one layout, loaded under another: weights and moments to the bit
    chunks    the loss in chunks of a few rows, on one rank and on several, and of all rows on one rank: within 1e-5 relative
"""

import os
import pathlib
import random
import tempfile

import chunks
from compare_runs import FULL, LONG, STRATEGIES, equal, fsdp2_settings, run_check, strategy_settings
from hybrid_runs import compare, compare_layouts, with_gradients
from matrix import name_of, table

ROWS = 5  # of the table, unless all run
MICRO_BATCH, STEPS = 2, 5
SELECTIVE = ["model.recompute_granularity=selective", "model.recompute_modules=[core_attn, layernorm, mlp]"]
SIZES = ["model.num_attention_heads=8", "model.num_query_groups=4",
         "model.vocab_size=251", "model.make_vocab_size_divisible_by=64"]  # which pads alike for 1, 2 and 4 ranks
AXES = {
    "tensor": (2, 4),
    "groups": (4, 2, 1),  # of keys and values
    "rows": (False, True),
    "pieces": (0, 2, 4),  # in which rows move
    "strategy": (*STRATEGIES, "torch_fsdp2"),
    "data": (1, 2, 4),
    "instances": (1, 2),
    "outer": ("no_shard", "optim"),  # of state between instances
    "microbatches": (1, 3),
    "recompute": ("none", "selective", "full"),
    "tied": (False, True),
    "per_token": (False, True),
}
RECOMPUTE = {"none": [], "selective": SELECTIVE, "full": FULL}


def is_valid(row):
    """Whether no rule refuses the values of the row that are already chosen."""
    if row.get("instances", 1) > 1 and (row.get("data", 2) < 2 or row.get("strategy") in ("no_shard", "torch_fsdp2")):
        return False
    if row.get("pieces") and not row.get("rows", True):
        return False
    if row.get("outer", "no_shard") == "optim" and (row.get("instances", 2) == 1 or row.get("strategy") != "optim_grads_params"):
        return False
    return not (row.get("tied") and row.get("strategy") == "torch_fsdp2")


def layout(tensor=1, rows=False, strategy="no_shard", data=1, instances=1, outer="no_shard"):
    ranks = tensor * data
    if strategy == "torch_fsdp2":
        found = [*fsdp2_settings(True, ranks), "checkpoint.ckpt_format=torch_dist"]
    else:
        found = [*strategy_settings(strategy), f"cluster.gpus_per_node={ranks}"]
    return [*found, f"model.tensor_model_parallel_size={tensor}", f"model.sequence_parallel={str(rows).lower()}",
            f"ddp.num_distributed_optimizer_instances={instances}", f"ddp.outer_dp_sharding_strategy={outer}",
            f"train.micro_batch_size={MICRO_BATCH}"]


def pieces(count):
    """Settings for rows in several pieces whose transfers overlap products. Dropout between layers would not allow
    this."""
    return ["model.hidden_dropout=0.0", "model.tp_comm_overlap=true", f"model.tp_comm_overlap_pieces={count}"]


def model(row):
    return [*SIZES, f"model.num_query_groups={row['groups']}",
            f"model.share_embeddings_and_output_weights={str(row['tied']).lower()}",
            f"model.calculate_per_token_loss={str(row['per_token']).lower()}",
            f"train.global_batch_size={MICRO_BATCH * row['data'] * row['microbatches']}", f"train.train_iters={STEPS}",
            *["model.hidden_dropout=0.0"] * (row.get("pieces", 0) > 0)]


def check_one_rank(runner):
    draw = random.Random(int(os.environ.get("SEED", "1")))
    rows = table(AXES, is_valid, draw, None if LONG else ROWS)
    for row in rows:
        expected = with_gradients(runner, *model(row), *layout())
        own = layout(*(row[axis] for axis in ("tensor", "rows", "strategy", "data", "instances", "outer")))
        own += pieces(row["pieces"]) if row["pieces"] else []
        compare(name_of(row), with_gradients(runner, *model(row), *own, *RECOMPUTE[row["recompute"]]), expected)
    print(f"{len(rows)} rows")


def check_same(runner):
    ways = ("whole", False, []), ("by rows", True, []), ("by rows in pieces", True, pieces(2))
    for name, rows, moved in runner.with_kernels(ways):
        settings = [*SIZES, "train.global_batch_size=8", "train.train_iters=4", *moved,
                    *layout(2, rows, "optim_grads_params", 2), "validation.eval_interval=2", "validation.eval_iters=2"]
        expected = runner.run_plan(*settings)
        for seed in (1, 2):
            equal(f"{name}, seed {seed}", expected, runner.run_plan(*settings, options=[f"--seed-schedule={seed}"]))
        equal(f"{name}, all layers computed again", expected, runner.run_plan(*settings, *FULL))
        equal(f"{name}, parts of layers computed again", expected, runner.run_plan(*settings, *SELECTIVE))
        records = runner.metrics(["shardc", "run", runner.recipe, "--processes", *runner.arguments(settings)])
        equal(f"{name}, a process for each rank", expected, [(each["loss"], each["grad_norm"]) for each in records])


def check_layouts(runner):
    def under(*axes):
        return [*SIZES, *layout(*axes), *strategy_settings("optim_grads_params")[:2]]

    layouts = {"one rank": under(1, False, "optim_grads_params", 1), "FSDP on 3": under(1, False, "optim_grads_params", 3),
               "tensor 2": under(2, False, "optim_grads_params", 1), "tensor 4 by rows": under(4, True, "optim_grads_params", 1),
               "tensor 2 by rows, FSDP 3": under(2, True, "optim_grads_params", 3)}
    compare_layouts(runner, layouts, ("one rank", "tensor 2", "tensor 2 by rows, FSDP 3"))


class InChunks:
    """A runner that computes losses in chunks of `rows` rows."""

    def __init__(self, runner, rows):
        self.runner, self.rows = runner, rows

    def run_plan(self, *settings, options=()):
        plan = pathlib.Path(self.runner.folder.name) / "chunks.plan"
        compile_plan = ["shardc", "dump-plan", self.runner.recipe, *self.runner.arguments(settings)]
        chunks.write_plan(self.runner.call, compile_plan, self.rows, plan)
        with tempfile.TemporaryDirectory() as empty:
            records = self.runner.metrics(["shardc-run", plan, *options], cwd=empty)
        return [(record["loss"], record["grad_norm"]) for record in records]


def check_chunks(runner):
    row = {"groups": 2, "tied": False, "per_token": False, "data": 2, "microbatches": 2}
    for tied, rows, tensor, chunk, moved, further in ((False, True, 2, 24, 0, 0), (False, True, 2, 8, 2, 0), (True, False, 4, 8, 0, 0),
                                                      (False, True, 2, 24, 0, 2), (True, True, 2, 12, 0, 2), (True, False, 1, 8, 0, 0),
                                                      (False, False, 1, 24, 0, 2)):
        settings = [*model({**row, "tied": tied, "pieces": moved}), "validation.eval_interval=5", "validation.eval_iters=1",
                    *[f"model.mtp_num_layers={further}"] * (further > 0)]
        expected = with_gradients(runner, *settings, *layout())
        own = [*layout(tensor, rows, "optim_grads_params", row["data"]), *(pieces(moved) if moved else [])]
        # Of several losses of a tied table, ranks have one in chunks, which recipes cannot ask for.
        if tied and further:
            found = with_gradients(InChunks(runner, chunk), *settings, *own)
        else:
            found = with_gradients(runner, *settings, *own, f"model.loss_chunk_rows={chunk}")
        compare(f"chunks of {chunk} rows, {tensor} parts, {moved or 1} pieces, {further} multi-token predictions", found, expected)


if __name__ == "__main__":
    run_check({"one-rank": check_one_rank, "same": check_same, "layouts": check_layouts, "chunks": check_chunks})
