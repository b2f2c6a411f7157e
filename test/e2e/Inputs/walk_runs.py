#!/usr/bin/env python3
"""Saves and loads in a random sequence of layouts: a checkpoint that is saved under one layout is loaded under the
next, bitwise equal. Needs only Python.

    walk_runs.py RECIPE [--set path=value ...]

Each run loads a checkpoint, trains a step and saves another one. Before its step, all ranks together must have the
weights and moments that the previous run had after its step. Tools reshard and convert some of the checkpoints in
between. Pipelines train a step; its loss and norm must be those of one rank from the same checkpoint, and two layouts
must then load its checkpoint equally. Layouts are drawn from strategies, numbers of ranks, groups of ranks that each
hold the whole state, tensor- and context-parallel ranks and their exchanges, and formats. The walk of seed SEED (1 by
default) has 5 layouts, or 50 with SHARDC_LONG=1.
"""

import argparse
import array
import collections
import json
import os
import pathlib
import random
import subprocess
import tempfile

from compare_runs import LONG, Runner, close
from resume_runs import REPLICATED, SHARDING, TORCH, Place, expect, loads, saves, under

RESHARDS = 50 if LONG else 5
RANKS = (1, 2, 3, 4, 6, 8)  # which divide the samples of a step
RANKS_MAX = 8
WAYS = ("p2p", "all_gather", "a2a")  # of exchanging slices
STAGES, KEYS = 2, 2  # which divide the layers; heads of keys
NEAR = 0.02  # of a tensor's largest element, after a step whose sums are added in another order
CELLS = {"master": "weight", "m": "first moment", "v": "second moment"}
SETTINGS = [
    "mixed_precision=bf16_mixed", "train.micro_batch_size=1", "train.global_batch_size=24", "train.train_iters=1000",
    "train.exit_interval=1", "model.seq_length=16", "model.share_embeddings_and_output_weights=false",
    # Rows that numbers of data-parallel ranks do not divide, and a vocabulary that 1, 2 and 4 ranks pad alike.
    "model.hidden_size=40", "model.ffn_hidden_size=76", "model.make_vocab_size_divisible_by=1", "model.vocab_size=260",
]


class Layout:
    """The layout of a run's state, and the format of its checkpoints."""

    def __init__(self, draw):
        self.strategy = draw.choice([*SHARDING, *REPLICATED, *TORCH])
        self.tensor = 1 if self.strategy in TORCH else draw.choice((1, 1, 2, 4))
        self.ranks = draw.choice([ranks for ranks in RANKS if ranks * self.tensor <= RANKS_MAX])
        self.groups, self.outer, self.format = 1, "no_shard", None
        counts = [count for count in range(2, self.ranks) if self.ranks % count == 0]
        if self.strategy in SHARDING and counts and draw.random() < 0.7:
            self.groups = draw.choice(counts)
            if self.strategy == "optim_grads_params" and draw.random() < 0.6:
                self.outer = "optim"
        if self.strategy in TORCH:
            self.format = draw.choice(["torch_dcp", "torch_dist"])
        self.by_rows = self.tensor > 1 and draw.random() < 0.5
        self.context = draw.choice([each for each in (1, 2, 4) if self.ranks % (each * self.groups) == 0])
        # Heads are exchanged where each rank has some.
        self.way = draw.choice(WAYS if self.tensor * self.context <= KEYS else WAYS[:2])
        self.saves_beside = self.strategy not in TORCH and draw.random() < 0.5

    def settings(self):
        found = under(self.strategy, self.ranks * self.tensor)
        if self.tensor > 1:
            rows = str(self.by_rows).lower()
            found += [f"model.tensor_model_parallel_size={self.tensor}", f"model.sequence_parallel={rows}"]
        if self.groups > 1:
            found += [f"ddp.num_distributed_optimizer_instances={self.groups}", f"ddp.outer_dp_sharding_strategy={self.outer}"]
        if self.context > 1:
            found += [f"model.context_parallel_size={self.context}", f"model.cp_comm_type=[{self.way}]"]
        if self.format:
            found.append(f"checkpoint.ckpt_format={self.format}")
        return found + (["checkpoint.async_save=true"] if self.saves_beside else [])

    def __str__(self):
        text = f"{self.strategy} on {self.ranks}"
        if self.groups > 1:
            text += f" in {self.groups} groups" + (", state divided between them" if self.outer == "optim" else "")
        if self.tensor > 1:
            text += f" times {self.tensor} tensor-parallel" + (", by rows between products" if self.by_rows else "")
        text += f", in slices for {self.context} by {self.way}" if self.context > 1 else ""
        return text + (f", {self.format}" if self.format else "")


class Pipeline:
    """A run in stages, whose state only its checkpoints show."""

    def __init__(self, draw):
        self.strategy, self.data = draw.choice([*SHARDING, *REPLICATED]), draw.choice((1, 2, 3))
        self.schedule = draw.choice(("one_forward_one_backward", "zero_bubble"))

    def settings(self):
        return [*under(self.strategy, STAGES * self.data), f"model.pipeline_model_parallel_size={STAGES}",
                f"model.pipeline_schedule={self.schedule}"]

    def __str__(self):
        return f"{STAGES} stages of {self.strategy} on {self.data}, {self.schedule}"


def agree(is_there, old, new):
    """Whether the bytes are the same where there were some."""
    if all(is_there) or not any(is_there):
        return not any(is_there) or old == new
    return all(not known or a == b for known, a, b in zip(is_there, old, new))


def pieces_of(part, data):
    """Where in the whole tensor the bytes of a part are: all in a row, or some of the columns of each row."""
    values, count = data[4 * part["begin"]:4 * part["end"]], part["end"] - part["begin"]
    columns = part.get("columns", count)
    for row in range(count // columns):
        yield 4 * (part["global_begin"] + row * part.get("stride", columns)), values[4 * row * columns:4 * (row + 1) * columns]


def state_of(folder, segment):
    """(parameter, kind of state) -> bytes of the whole tensor. Ranks that hold the same element must agree."""
    index = json.loads((folder / "index.json").read_text())
    sizes = {}
    for param in index["params"]:
        sizes[param["name"]] = 4
        for extent in param["shape"]:
            sizes[param["name"]] *= extent
    state = {(param, what): bytearray(size) for param, size in sizes.items() for what in CELLS.values()}
    there = {key: bytearray(len(values)) for key, values in state.items()}
    for tensor in index["tensors"]:
        if tensor["segment"] != segment:
            continue
        data = (folder / tensor["file"]).read_bytes()
        what = CELLS[tensor["name"].lstrip("@").split(".")[0]]
        for part in tensor["parts"]:
            key = (part["param"], what)
            for begin, values in pieces_of(part, data):
                place = slice(begin, begin + len(values))
                expect(agree(there[key][place], state[key][place], values), f"{tensor['file']}: ranks hold different elements of {key}")
                state[key][place], there[key][place] = values, b"\1" * len(values)
    for key, seen in there.items():
        expect(all(seen), f"{segment}: no rank holds all of {key}")
    return state


def step_under(runner, settings, step):
    """Losses and norms of a step, and state before and after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        looks = [f"--dump={segment}:@{cell}.*" for segment in ("micro", "update") for cell in CELLS]
        options = [f"--dump-dir={folder / 'dump'}", f"--dump-step={step}", *looks]
        steps = runner.run_plan(*SETTINGS, *settings, options=options)
        expect(len(steps) == 1, f"{settings}: {len(steps)} steps")
        return steps, state_of(folder / "dump", "micro"), state_of(folder / "dump", "update")


def tool(*words):
    done = subprocess.run(["shardc", "ckpt", *map(str, words)], capture_output=True, text=True)
    expect(done.returncode == 0, f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def by_tools(draw, place, folder):
    """The checkpoint converted to the other format, or resharded for other ranks, and a description of the change."""
    found = json.loads(tool("inspect", folder, "--json"))["format"]
    conversion = {"fsdp_dtensor": ["fsdp-dtensor-to-torch-dist"],
                  "torch_dist": ["torch-dist-to-fsdp-dtensor", "--swiglu"]}.get(found)
    changed = place.new()
    if conversion and draw.random() < 0.5:
        tool("convert", *conversion, folder, changed)
        return changed, f", {conversion[0]}"
    ranks = draw.randrange(1, 9)
    tool("reshard", folder, changed, f"--ranks={ranks}")
    return changed, f", as {ranks} ranks would save it"


def loading(folder):
    return [*loads(folder), "checkpoint.convert_on_load=true"] if folder else []


def through_stages(runner, draw, place, folder, step):
    """One step of a pipeline: its checkpoint, the state that one rank loads from it, and a description."""
    pipeline, one, kept = Pipeline(draw), under("no_shard", 1), place.new()
    expected, _, after = step_under(runner, [*one, *loading(folder)], step)
    found = runner.run_plan(*SETTINGS, *pipeline.settings(), *loading(folder), *saves(kept))
    for which, (name, tolerance) in enumerate((("loss", 1e-5), ("norm", 1e-3))):  # gradients are rounded to bf16
        close(f"{pipeline}: {name}", [each[which:] for each in found], [each[which:] for each in expected], tolerance)
    state = step_under(runner, [*one, *loading(kept)], step + 1)[1]
    for key, values in state.items():
        mine, its = (array.array("f", bytes(each)) for each in (values, after[key]))
        apart, most = max(abs(x - y) for x, y in zip(mine, its)), max(map(abs, its))
        expect(apart <= NEAR * most, f"{pipeline}: {key} is {apart:.3e} from one rank's, of {most:.3e}")
    return kept, state, str(pipeline)


def walk(runner):
    seed = int(os.environ.get("SEED", "1"))
    draw, place = random.Random(seed), Place()
    folder, state, how, step = None, None, "", 0
    met = collections.Counter()
    while sum(met.values()) <= RESHARDS:
        layout, kept, step = Layout(draw), place.new(), step + 1
        _, loaded, after = step_under(runner, [*layout.settings(), *loading(folder), *saves(kept)], step)
        if state is not None:
            expect(len(state) > 30 and state.keys() == loaded.keys(), f"{len(state)} and {len(loaded)} tensors")
            unlike = [key for key in state if state[key] != loaded[key]]
            expect(not unlike, f"seed {seed}, step {step}: {how} to {layout}: {unlike} differ")
            print(f"{how} to {layout}: {len(state)} tensors equal to the bit", flush=True)
        expect(after != loaded, f"{layout}: step {step} changes nothing")
        met[str(layout)] += 1
        state, folder, how = after, kept, str(layout)
        if draw.random() < 0.3:
            folder, what = by_tools(draw, place, folder)
            how += what
        if draw.random() < 0.25:
            step += 1
            folder, state, how = through_stages(runner, draw, place, folder, step)
            met[how] += 1
    print(f"{sum(met.values()) - 1} reshards among {len(met)} layouts, seed {seed}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    walk(Runner(options.recipe, options.set))


if __name__ == "__main__":
    main()
