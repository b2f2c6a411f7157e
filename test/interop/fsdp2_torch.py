"""Trains a small model with PyTorch's fully_shard and with a run under use_torch_fsdp2, and exchanges their checkpoints.

usage: fsdp2_torch.py BIN

fully_shard runs on the processor (gloo), a process for each rank, in fp32. Compared are the losses and gradient norms of
all steps, the rows that each rank has, and the losses after each side has loaded what the other one saved. BIN is the
folder of shardc and shardc-run. Exits with 77 if torch is not there.
"""

import argparse
import dataclasses
import json
import pathlib
import socket
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as processes
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "e2e" / "golden"
sys.path.insert(0, str(GOLDEN))
from maker import cases, dataset, model, training  # noqa: E402

TRACKER = "latest_checkpointed_iteration.txt"
STEPS, SAVED = 6, 3
TOLERANCE = 1e-5


@dataclasses.dataclass
class Job:
    case: cases.Case
    ranks: int
    reshards: bool  # after the forward pass
    port: int
    load: str = ""
    save: str = ""
    begin: int = 0


class Unit(torch.nn.Module):
    """Parameters under their names, in modules that do nothing by themselves."""

    def __init__(self, prefix=""):
        super().__init__()
        self.prefix = prefix

    def add(self, name, value):
        *path, last = name.split(".")
        module = self
        for word in path:
            if not hasattr(module, word):
                setattr(module, word, torch.nn.Module())
            module = getattr(module, word)
        module.register_parameter(last, torch.nn.Parameter(torch.from_numpy(value.copy())))

    def params(self):
        return {self.prefix + name: value for name, value in self.named_parameters()}


class Embedding(Unit):
    def forward(self, case, tokens, positions):
        return model.embed(case, self.params(), tokens, positions)


class Layer(Unit):
    def forward(self, case, numerics, x, allowed):
        return model.apply_layer(case, self.params(), self.prefix, numerics, x, allowed)


class Model(Unit):
    """The units that Megatron-Core wraps; the rest belongs to the model itself."""

    def __init__(self, case):
        super().__init__()
        self.embedding = Embedding("embedding.")
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(Layer(f"decoder.layers.{i}.") for i in range(case.num_layers))
        for name, value in model.initial_values(case).items():
            unit = next((u for u in self.units() if name.startswith(u.prefix)), self)
            unit.add(name.removeprefix(unit.prefix), value)

    def units(self):
        return [self.embedding, *self.decoder.layers]

    def forward(self, case, numerics, tokens, labels, mask, positions, starts):
        x = self.embedding(case, tokens, positions)
        allowed = model.allowed_positions(starts)
        for layer in self.decoder.layers:
            x = layer(case, numerics, x, allowed)
        return model.losses_of(case, self.params(), numerics, x, labels, mask)


class Trainer:
    def __init__(self, job):
        self.job, self.case = job, job.case
        self.rank = dist.get_rank()
        self.numerics = model.Numerics(torch.float32)
        docs = dataset.documents()
        self.order = dataset.SampleOrder(docs, self.case.steps * self.case.global_batch, self.case.seq_length,
                                         self.case.data_seed)
        mesh = init_device_mesh("cpu", (job.ranks,))
        self.model = Model(self.case)
        for module in [*self.model.units(), self.model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=job.reshards)
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        plain = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.case.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=self.case.lr, betas=self.case.betas, eps=self.case.adam_eps, foreach=False)

    def step(self, number):
        """Loss and gradient norm."""
        case, sums = self.case, torch.zeros(2, dtype=torch.float64)
        microbatches = case.global_batch // case.micro_batch // self.job.ranks
        for first in range(self.rank * case.micro_batch, case.global_batch, self.job.ranks * case.micro_batch):
            tokens, labels, mask, positions, starts = map(
                torch.from_numpy, dataset.batch(self.order, number * case.global_batch + first, case.micro_batch, case))
            mask = mask.to(torch.float32)
            total = self.model(case, self.numerics, tokens, labels, mask, positions, starts).sum()
            (total / mask.sum() / microbatches).backward()
            sums += torch.tensor([total.item(), mask.sum().item()], dtype=torch.float64)
        dist.all_reduce(sums)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), case.clip, foreach=False).full_tensor()
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate(case, number)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (sums[0] / sums[1]).item(), norm.item()

    def state(self):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments}

    def load(self, folder):
        """Every weight and moment must be there. Settings of the optimizer are the job's own."""
        state = self.state()
        wanted = {"model": state["model"], "optimizer": {"state": state["optimizer"]["state"]}}
        dcp.load(wanted, checkpoint_id=folder)
        state["optimizer"]["state"] = wanted["optimizer"]["state"]
        set_state_dict(self.model, self.optimizer, model_state_dict=wanted["model"],
                       optim_state_dict=state["optimizer"])

    def save(self, folder, steps):
        """With what Megatron's trainer adds."""
        samples = steps * self.case.global_batch
        progress = argparse.Namespace(iteration=steps, consumed_train_samples=samples, skipped_train_samples=0,
                                      consumed_valid_samples=0)
        dcp.save({**self.state(), "iteration": steps, "checkpoint_version": 3.0, "args": progress,
                  "opt_param_scheduler": {"num_steps": samples}}, checkpoint_id=folder)


def work(rank, job, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{job.port}", rank=rank, world_size=job.ranks)
    trainer = Trainer(job)
    if job.load:
        trainer.load(job.load)
    rows = {name: list(p.to_local().shape) for name, p in trainer.model.named_parameters()}
    last = SAVED if job.save else STEPS
    steps = [trainer.step(number) for number in range(job.begin, last)]
    if job.save:
        trainer.save(job.save, last)
    pathlib.Path(out, f"rank{rank}.json").write_text(json.dumps({"steps": steps, "rows": rows}))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def by_torch(case, ranks, reshards, folder, **more):
    """Losses and norms of steps, and the shapes of each rank's parameters."""
    folder.mkdir()
    processes.spawn(work, args=(Job(case, ranks, reshards, free_port(), **more), str(folder)), nprocs=ranks)
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert all(each["steps"] == found[0]["steps"] for each in found), "ranks disagree"
    return [tuple(step) for step in found[0]["steps"]], [each["rows"] for each in found]


def call(command):
    done = subprocess.run([str(word) for word in command], cwd=GOLDEN, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def by_shardc(binaries, case, ranks, reshards, folder, *settings):
    """Losses and norms of steps. Leaves the gradients of the first one in the folder."""
    folder.mkdir()
    padding = 1 if case.padded_vocab == case.vocab_size else 128
    every = [f"cluster.gpus_per_node={ranks}", "dist.use_torch_fsdp2=true",
             f"dist.torch_fsdp2_reshard_after_forward={str(reshards).lower()}", f"model.hidden_size={case.hidden}",
             f"model.ffn_hidden_size={case.ffn}", f"model.num_layers={case.num_layers}", f"model.make_vocab_size_divisible_by={padding}",
             f"train.global_batch_size={case.global_batch}", f"train.train_iters={STEPS}", *settings]
    call([binaries / "shardc", "dump-plan", "llama.recipe", "-o", folder / "job.plan", *(f"--set={s}" for s in every)])
    call([binaries / "shardc-run", folder / "job.plan", f"--metrics={folder}/metrics.jsonl", f"--dump-dir={folder}/dump",
          "--dump-step=1", "--dump=update:g.*"])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["loss"], r["grad_norm"]) for r in records if "loss" in r]


def rows_of(folder, ranks):
    """The shapes of each rank's parameters, of what a run left in the folder."""
    index = json.loads((folder / "dump" / "index.json").read_text())
    shapes = {param["name"]: param["shape"] for param in index["params"]}
    rows = [{name: [0, *shape[1:]] for name, shape in shapes.items()} for _ in range(ranks)]
    for tensor in index["tensors"]:
        for part in tensor["parts"]:
            shape = rows[tensor["rank"]][part["param"]]
            shape[0] = (part["end"] - part["begin"]) // (shape[1] if len(shape) > 1 else 1)
    return rows


def near(name, found, expected):
    assert len(found) == len(expected) > 0, f"{name}: {len(found)} and {len(expected)} steps"
    worst = max(abs(a - b) / abs(b) for x, y in zip(found, expected) for a, b in zip(x, y))
    assert worst <= TOLERANCE, f"{name}: off by {worst:.2e}\n{found}\n{expected}"
    print(f"{name}: {len(found)} losses and norms within {worst:.1e}", flush=True)


def check(binaries, case, ranks, reshards):
    name = f"{ranks} ranks, {'freed' if reshards else 'kept'}, {case.global_batch // case.micro_batch // ranks} microbatches"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        theirs, their_rows = by_torch(case, ranks, reshards, folder / "theirs")
        ours = by_shardc(binaries, case, ranks, reshards, folder / "ours")
        our_rows = rows_of(folder / "ours", ranks)
        near(f"{name}: run and fully_shard", ours, theirs)
        assert our_rows == their_rows, f"{name}: rows {our_rows} and {their_rows}"
        assert any(rows != our_rows[0] for rows in our_rows), "all ranks have the same rows"

        saved = folder / "saved by us"
        by_shardc(binaries, case, ranks, reshards, folder / "first", f'checkpoint.save="{saved}"',
                  f"train.exit_interval={SAVED}")
        rest, _ = by_torch(case, ranks, reshards, folder / "rest", load=f"{saved}/iter_{SAVED:07}", begin=SAVED)
        near(f"{name}: fully_shard after it loaded ours", rest, theirs[SAVED:])

        saved = folder / "saved by torch"
        saved.mkdir()
        by_torch(case, ranks, reshards, folder / "other", save=f"{saved}/iter_{SAVED:07}")
        (saved / TRACKER).write_text(str(SAVED))
        for count in {ranks, 1}:
            rest = by_shardc(binaries, case, count, reshards, folder / f"again{count}", f'checkpoint.load="{saved}"')
            near(f"{name}: run of {count} after it loaded what torch {torch.__version__} saved", rest, ours[SAVED:])


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    uneven = dataclasses.replace(cases.LLAMA, hidden=40, head=10, ffn=70, padded_vocab=257, num_layers=2, steps=STEPS)
    check(binaries, dataclasses.replace(uneven, global_batch=6), 3, True)
    check(binaries, dataclasses.replace(uneven, global_batch=12), 2, False)
    check(binaries, dataclasses.replace(uneven, global_batch=10), 5, True)


if __name__ == "__main__":
    main()
