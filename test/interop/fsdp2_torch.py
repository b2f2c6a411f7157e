"""Trains a small model with PyTorch's fully_shard and with a run under use_torch_fsdp2, and exchanges their checkpoints.

usage: fsdp2_torch.py BIN [--gpus N]

fully_shard runs on the processor (gloo) in fp32, with one process per rank. Compared are the losses and gradient norms
of all steps, the rows of each rank, and the losses after each side has loaded the other's checkpoint. BIN is the folder
of shardc and shardc-run. Exits with 77 without torch.

With --gpus, both sides use N GPUs (NCCL). Two runs in bf16 with fp32 reductions follow, one by fully_shard and one by
us. The rms distance of our losses from those of fully_shard in fp32 may be at most 1.5 times that of fully_shard in
bf16.
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
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "e2e" / "golden"
sys.path.insert(0, str(GOLDEN))
from maker import cases, dataset, model, training  # noqa: E402

TRACKER = "latest_checkpointed_iteration.txt"
STEPS, SAVED = 6, 3
TOLERANCE = 1e-5
GPU_TOLERANCE = 1e-4  # products add in another order
BF16_STEPS, BF16_SPREAD = 20, 1.5


@dataclasses.dataclass
class Job:
    case: cases.Case
    ranks: int
    reshards: bool  # after the forward pass
    port: int
    load: str = ""
    save: str = ""
    begin: int = 0
    steps: int = STEPS
    device: str = "cpu"
    bf16: bool = False


class Unit(torch.nn.Module):
    """A module that only holds parameters under their names."""

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
    """The units that Megatron-Core wraps; other parameters belong to the model itself."""

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
        self.numerics = model.Numerics(torch.bfloat16 if job.bf16 else torch.float32, native=job.bf16)
        docs = dataset.documents()
        self.order = dataset.SampleOrder(docs, self.case.steps * self.case.global_batch, self.case.seq_length,
                                         self.case.data_seed)
        mesh = init_device_mesh(job.device, (job.ranks,))
        self.model = Model(self.case).to(job.device)
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if job.bf16 else MixedPrecisionPolicy()
        for module in [*self.model.units(), self.model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=job.reshards, mp_policy=precision)
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        plain = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": self.case.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=self.case.lr, betas=self.case.betas, eps=self.case.adam_eps, foreach=False)

    def step(self, number):
        """Trains a step. Returns the loss and the gradient norm."""
        case, sums = self.case, torch.zeros(2, dtype=torch.float64, device="cpu")
        microbatches = case.global_batch // case.micro_batch // self.job.ranks
        for first in range(self.rank * case.micro_batch, case.global_batch, self.job.ranks * case.micro_batch):
            batch = dataset.batch(self.order, number * case.global_batch + first, case.micro_batch, case)
            tokens, labels, mask, positions, starts = (torch.from_numpy(part).to(self.job.device) for part in batch)
            mask = mask.to(torch.float32)
            total = self.model(case, self.numerics, tokens, labels, mask, positions, starts).sum()
            (total / mask.sum() / microbatches).backward()
            sums += torch.tensor([total.item(), mask.sum().item()], dtype=torch.float64, device="cpu")
        sums = sums.to(self.job.device)
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
        """Loads a checkpoint, in which every weight and moment must exist. Settings of the optimizer stay the job's
        own."""
        state = self.state()
        wanted = {"model": state["model"], "optimizer": {"state": state["optimizer"]["state"]}}
        dcp.load(wanted, checkpoint_id=folder)
        state["optimizer"]["state"] = wanted["optimizer"]["state"]
        set_state_dict(self.model, self.optimizer, model_state_dict=wanted["model"],
                       optim_state_dict=state["optimizer"])

    def save(self, folder, steps):
        """Saves a checkpoint, including what Megatron's trainer adds."""
        samples = steps * self.case.global_batch
        progress = argparse.Namespace(iteration=steps, consumed_train_samples=samples, skipped_train_samples=0,
                                      consumed_valid_samples=0)
        dcp.save({**self.state(), "iteration": steps, "checkpoint_version": 3.0, "args": progress,
                  "opt_param_scheduler": {"num_steps": samples}}, checkpoint_id=folder)


def work(rank, job, out):
    torch.set_num_threads(1)
    torch.set_default_device(job.device)
    if job.device == "cuda":
        torch.cuda.set_device(rank)
    transport = "nccl" if job.device == "cuda" else "gloo"
    dist.init_process_group(transport, init_method=f"tcp://127.0.0.1:{job.port}", rank=rank, world_size=job.ranks)
    trainer = Trainer(job)
    if job.load:
        trainer.load(job.load)
    rows = {name: list(p.to_local().shape) for name, p in trainer.model.named_parameters()}
    last = SAVED if job.save else job.steps
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
    """The losses and norms of steps, and the shapes of each rank's parameters."""
    folder.mkdir()
    processes.spawn(work, args=(Job(case, ranks, reshards, free_port(), **more), str(folder)), nprocs=ranks)
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert all(each["steps"] == found[0]["steps"] for each in found), "ranks disagree"
    return [tuple(step) for step in found[0]["steps"]], [each["rows"] for each in found]


def call(command):
    done = subprocess.run([str(word) for word in command], cwd=GOLDEN, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def by_shardc(binaries, case, ranks, reshards, folder, *settings, steps=STEPS, device="cpu"):
    """The losses and norms of steps. Dumps the gradients of the first one into the folder."""
    folder.mkdir()
    padding = 1 if case.padded_vocab == case.vocab_size else 128
    every = [f"cluster.gpus_per_node={ranks}", "dist.use_torch_fsdp2=true",
             f"dist.torch_fsdp2_reshard_after_forward={str(reshards).lower()}", f"model.hidden_size={case.hidden}",
             f"model.ffn_hidden_size={case.ffn}", f"model.num_layers={case.num_layers}", f"model.make_vocab_size_divisible_by={padding}",
             f"train.global_batch_size={case.global_batch}", f"train.train_iters={steps}",
             *(["cluster.gpu=h200"] if device == "cuda" else []), *settings]
    call([binaries / "shardc", "dump-plan", "llama.recipe", "-o", folder / "job.plan", *(f"--set={s}" for s in every)])
    call([binaries / "shardc-run", folder / "job.plan", f"--metrics={folder}/metrics.jsonl", f"--dump-dir={folder}/dump",
          "--dump-step=1", "--dump=update:g.*"])
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(r["loss"], r["grad_norm"]) for r in records if "loss" in r]


def rows_of(folder, ranks):
    """The shapes of each rank's parameters, from a run's dump in the folder."""
    indices = [json.loads(path.read_text()) for path in sorted((folder / "dump").glob("index*.json"))]
    shapes = {param["name"]: param["shape"] for param in indices[0]["params"]}
    rows = [{name: [0, *shape[1:]] for name, shape in shapes.items()} for _ in range(ranks)]
    for tensor in (tensor for index in indices for tensor in index["tensors"]):
        for part in tensor["parts"]:
            shape = rows[tensor["rank"]][part["param"]]
            shape[0] = (part["end"] - part["begin"]) // (shape[1] if len(shape) > 1 else 1)
    return rows


def near(name, found, expected, tolerance=TOLERANCE):
    assert len(found) == len(expected) > 0, f"{name}: {len(found)} and {len(expected)} steps"
    worst = max(abs(a - b) / abs(b) for x, y in zip(found, expected) for a, b in zip(x, y))
    assert worst <= tolerance, f"{name}: off by {worst:.2e}\n{found}\n{expected}"
    print(f"{name}: {len(found)} losses and norms within {worst:.1e}", flush=True)


def check(binaries, case, ranks, reshards, device="cpu"):
    name = f"{ranks} ranks, {'freed' if reshards else 'kept'}, {case.global_batch // case.micro_batch // ranks} microbatches"
    tolerance = GPU_TOLERANCE if device == "cuda" else TOLERANCE
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)

        def torch_run(place, **more):
            return by_torch(case, ranks, reshards, folder / place, device=device, **more)

        def our_run(place, *settings, count=ranks):
            return by_shardc(binaries, case, count, reshards, folder / place, *settings, device=device)

        theirs, their_rows = torch_run("theirs")
        ours = our_run("ours")
        our_rows = rows_of(folder / "ours", ranks)
        near(f"{name}: run and fully_shard", ours, theirs, tolerance)
        assert our_rows == their_rows, f"{name}: rows {our_rows} and {their_rows}"
        assert any(rows != our_rows[0] for rows in our_rows), "all ranks have the same rows"

        saved = folder / "saved by us"
        our_run("first", f'checkpoint.save="{saved}"', f"train.exit_interval={SAVED}")
        rest, _ = torch_run("rest", load=f"{saved}/iter_{SAVED:07}", begin=SAVED)
        near(f"{name}: fully_shard after it loaded ours", rest, theirs[SAVED:], tolerance)

        saved = folder / "saved by torch"
        saved.mkdir()
        torch_run("other", save=f"{saved}/iter_{SAVED:07}")
        (saved / TRACKER).write_text(str(SAVED))
        for count in sorted({ranks, 1}):
            rest = our_run(f"again{count}", f'checkpoint.load="{saved}"', count=count)
            near(f"{name}: run of {count} after it loaded what torch {torch.__version__} saved", rest, ours[SAVED:], tolerance)


def check_bf16(binaries, case, ranks, device):
    """Losses in bf16 must be as near to those in fp32 as PyTorch's in bf16 are."""
    case = dataclasses.replace(case, steps=BF16_STEPS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        exact, _ = by_torch(case, ranks, True, folder / "exact", steps=BF16_STEPS, device=device)
        theirs, _ = by_torch(case, ranks, True, folder / "theirs", steps=BF16_STEPS, device=device, bf16=True)
        ours = by_shardc(binaries, case, ranks, True, folder / "ours", "mixed_precision=bf16_mixed", steps=BF16_STEPS, device=device)

    def distance(found):
        assert len(found) == BF16_STEPS, f"{len(found)} steps"
        return (sum((a[0] - b[0]) ** 2 for a, b in zip(found, exact)) / BF16_STEPS) ** 0.5

    print(f"bf16, {ranks} ranks, {BF16_STEPS} steps: rms distance from fully_shard in fp32 {distance(ours):.2e}, "
          f"of fully_shard in bf16 {distance(theirs):.2e}; last losses {ours[-1][0]:.5f}, {theirs[-1][0]:.5f}, fp32 {exact[-1][0]:.5f}",
          flush=True)
    assert distance(ours) <= BF16_SPREAD * distance(theirs), f"{ours}\n{theirs}\n{exact}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path)
    parser.add_argument("--gpus", type=int, default=0)
    options = parser.parse_args()
    binaries = options.binaries.resolve()
    uneven = dataclasses.replace(cases.LLAMA, hidden=40, head=10, ffn=70, padded_vocab=257, num_layers=2, steps=STEPS)
    if gpus := options.gpus:
        # Sizes that bf16 products accept. The vocabulary's rows stay uneven.
        even = dataclasses.replace(uneven, hidden=64, head=16, ffn=72)
        check(binaries, dataclasses.replace(even, global_batch=2 * gpus), gpus, True, "cuda")
        check(binaries, dataclasses.replace(even, global_batch=6 * gpus), gpus, False, "cuda")
        check_bf16(binaries, dataclasses.replace(even, global_batch=2 * gpus), gpus, "cuda")
        return
    check(binaries, dataclasses.replace(uneven, global_batch=6), 3, True)
    check(binaries, dataclasses.replace(uneven, global_batch=12), 2, False)
    check(binaries, dataclasses.replace(uneven, global_batch=10), 5, True)
    check_bf16(binaries, dataclasses.replace(uneven, global_batch=4), 2, "cpu")


if __name__ == "__main__":
    main()
