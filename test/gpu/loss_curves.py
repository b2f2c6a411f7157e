#!/usr/bin/env python3
"""Compares loss curves with PyTorch's. A model in bf16 must stay as close to PyTorch in fp32 as PyTorch in bf16 does.

    loss_curves.py SHARDC RECIPE [--device=cuda|cpu] [--out=FILE] [--fp8=RECIPE,...] [--steps=N] [--warmup=N]
                  [--set=path=value ...]

The text is this repository, one token per word. Both programs begin with the weights that one of our runs saved before
its first update. With --fp8, runs in these fp8 recipes must stay as close to our bf16 run as PyTorch in fp8 (see PEERS)
stays to PyTorch in bf16. Exits with 77 without PyTorch or a GPU or, for tensorwise and blockwise, without torchao.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
STEPS = 50
KERNEL = "flash"  # PyTorch's attention in fp8 comparisons
FP32_LIMIT = 1e-4  # our fp32 against PyTorch's, relative
MARGIN = 1.1  # how far we may exceed the largest distance of PyTorch's own runs in bf16 or fp8
# The recipes in which PyTorch trains for comparison. `tensorwise` is torchao's, the others are in torch_fp8.py.
PEERS = {"tensorwise": ["tensorwise"], "blockwise": ["tensorwise", "blockwise"], "delayed": ["delayed"]}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


try:
    import numpy as np
    import torch

    sys.path.insert(0, str(ROOT / "test/e2e/golden"))
    from maker import dataset

    import torch_fp8
    import torch_model
except ImportError as error:
    skip(error)


def words_of_repository(vocab):
    """Each file as a document, with one token per word."""
    documents = []
    for pattern in ("docs/**/*.md", "compiler/**/*.cpp", "runtime/**/*.cpp", "runtime/**/*.h", "compiler/**/*.h"):
        for path in sorted(ROOT.glob(pattern)):
            words = re.findall(r"\w+|[^\w\s]|\s+", path.read_text(encoding="utf-8", errors="replace"))
            documents.append(np.array([zlib.crc32(word.encode()) % min(vocab, 50_000) for word in words] + [0], np.uint16))
    return documents


class Runs:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def settings(self):
        steps = self.options.steps
        host = ["cluster.gpu=host"] if self.options.device == "cpu" else ["cluster.gpu=h200"]
        return [*host, "cluster.gpus_per_node=1", f"train.train_iters={steps}", f"scheduler.lr_decay_iters={steps}",
                f"scheduler.lr_warmup_iters={self.options.warmup}", "dataset.kind=indexed", f'dataset.blend=["{self.folder}/text"]',
                'dataset.split="100,0,0"', "dataset.random_seed=110", "logger.log_interval=10", *self.options.set]

    def shardc(self, name, *settings, overlay=None):
        """The losses of a run."""
        metrics = self.folder / f"{name}.jsonl"
        sets = [f"--set={s}" for s in [*self.settings(), *settings]]
        sets += [f"--overlay={overlay}"] if overlay else []
        begin = time.monotonic()
        command = [self.options.shardc, "run", self.options.recipe, *sets, f"--metrics={metrics}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]

    def value(self, path, *settings, overlay=None):
        sets = [f"--set={s}" for s in [*self.settings(), *settings]]
        sets += [f"--overlay={overlay}"] if overlay else []
        command = [self.options.shardc, "explain", self.options.recipe, path, *sets]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        found = re.search(rf"^{re.escape(path)} = (\S+)", done.stdout, re.M)
        if not found:
            sys.exit(f"{path}\n{done.stdout}{done.stderr}")
        return found.group(1).strip('"').replace("_", "")


def job_of(runs):
    number = lambda path: float(runs.value(path))
    groups = runs.value("model.num_query_groups")
    heads = int(runs.value("model.num_attention_heads"))
    experts = runs.value("model.num_moe_experts")
    family = "llama" if runs.value("model.normalization").lower() == "rmsnorm" else "gpt"
    return torch_model.Job(
        family=family, layers=int(runs.value("model.num_layers")), heads=heads,
        groups=heads if groups in ("none", "unset") else int(groups), vocab=int(runs.value("model.vocab_size")),
        lr=number("optimizer.lr"), min_lr=number("optimizer.min_lr"), warmup=runs.options.warmup, steps=runs.options.steps,
        batch=int(runs.value("train.global_batch_size")), sequence=int(runs.value("model.seq_length")),
        rotary_base=number("model.rotary_base") if family == "llama" else 0.0,
        experts=0 if experts in ("none", "unset") else int(experts), chosen=int(runs.value("model.moe_router_topk")))


def distance(curve, reference):
    """The root mean square and the largest distance of two curves."""
    d = np.abs(np.array(curve) - np.array(reference))
    return float(np.sqrt(np.mean(d * d))), float(d.max())


def batches_of(job, documents, device):
    order = dataset.SampleOrder(documents, job.steps * job.batch, job.sequence, 110)

    def batches(step):
        rows = [order.sample(step * job.batch + i) for i in range(job.batch)]
        return torch.from_numpy(np.stack(rows)).to(device)

    return batches


def torch_curves(job, initial, batches, device):
    curves = {}
    kernels = ("cudnn", "flash", "efficient") if device == "cuda" else ("flash", "math")
    whole = "efficient" if device == "cuda" else "math"
    for name, dtype, kernel in [("torch fp32", torch.float32, whole),
                                *((f"torch bf16 {k}", torch.bfloat16, k) for k in kernels)]:
        begin = time.monotonic()
        curves[name] = torch_model.train(job, initial, batches, dtype, kernel)
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    return curves


def compare(ours_bf16, ours_fp32, curves):
    """True if our curves are as near to PyTorch in fp32 as PyTorch's own bf16 curves; prints all distances."""
    reference = curves["torch fp32"]
    print(f"torch fp32: loss {reference[0]:.5f} -> {reference[-1]:.5f}")
    theirs = [distance(curve, reference) for name, curve in curves.items() if "bf16" in name]
    for name, curve in [*curves.items(), ("ours bf16", ours_bf16), ("ours fp32", ours_fp32)]:
        rms, largest = distance(curve, reference)
        print(f"{name:<22} {curve[0]:.6f} {curve[-1]:.6f}  from torch fp32: rms {rms:.2e}  max {largest:.2e}")
    rms, largest = distance(ours_bf16, reference)
    # A margin, since a few runs do not show the largest distance that is possible.
    good = rms <= MARGIN * max(r for r, _ in theirs) and largest <= MARGIN * max(m for _, m in theirs)
    relative = max(abs(a - b) / b for a, b in zip(ours_fp32, reference))
    print(f"bf16 {'within' if good else 'OUTSIDE of'} PyTorch's spread; fp32 within {relative:.1e} of PyTorch's")
    return good and relative <= FP32_LIMIT and reference[-1] < 0.9 * reference[0]


def overlay_of(recipe):
    return ROOT / f"recipes/overlays/fp8_{recipe}.recipe"


def peer_of(runs, recipe):
    """PyTorch's products for an fp8 recipe, with the options of the overlay."""
    value = lambda field: runs.value(f"model.fp8_{field}" if field else "model.fp8", overlay=overlay_of(recipe))
    if recipe == "tensorwise":
        return torch_fp8.Tensorwise(emulate=runs.options.device == "cpu")
    gradients = torch_fp8.gradients_of(value(""))
    if recipe == "blockwise":
        return torch_fp8.Blockwise(gradients)
    return torch_fp8.Delayed(gradients, int(value("amax_history_len")), value("amax_compute_algo") == "most_recent", int(value("margin")))


def compare_fp8(runs, job, initial, batches, bf16):
    """Whether each fp8 recipe is as near to bf16 as its peers, and the curves by name. Prints all distances."""
    recipes = runs.options.fp8.split(",")
    curves = {"ours bf16": bf16, "torch bf16": torch_model.train(job, initial, batches, torch.bfloat16, KERNEL)}
    rows = []

    def add(program, recipe, curve):
        name, reference = f"{program} {recipe}", f"{program} bf16"
        curves[name] = curve
        rms, largest = distance(curve, curves[reference])
        last = (curve[-1] - curves[reference][-1]) / curves[reference][-1]
        rows.append(f"{name:<22} {curve[0]:.6f} {curve[-1]:.6f}  from {reference}: rms {rms:.2e}  max {largest:.2e}  "
                    f"last {100 * last:+.2f} %")
        return rms, largest

    peers = {}
    for recipe in sorted({peer for name in recipes for peer in PEERS[name]}):
        begin = time.monotonic()
        curve = torch_model.train(job, initial, batches, torch.bfloat16, KERNEL, peer_of(runs, recipe))
        print(f"torch {recipe}: {time.monotonic() - begin:.1f} s", flush=True)
        peers[recipe] = add("torch", recipe, curve)
    good = True
    for recipe in recipes:
        ours = add("ours", recipe, runs.shardc(recipe, overlay=overlay_of(recipe)))
        widest = [max(peers[peer][i] for peer in PEERS[recipe]) for i in range(2)]
        good = good and all(a <= MARGIN * b for a, b in zip(ours, widest))
    print("\n".join(rows))
    print(f"fp8 {'within' if good else 'OUTSIDE of'} PyTorch's distance from bf16")
    return good, curves


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("recipe", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=pathlib.Path, help="writes all curves there, as JSON")
    parser.add_argument("--fp8", help="recipes of recipes/overlays, with commas between: tensorwise, blockwise, delayed")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    recipes = options.fp8.split(",") if options.fp8 else []
    if unknown := [recipe for recipe in recipes if recipe not in PEERS]:
        parser.error(f"fp8 recipes are {', '.join(PEERS)}; found {unknown[0]}")
    if any("tensorwise" in PEERS[recipe] for recipe in recipes) and not importlib.util.find_spec("torchao"):
        skip("there is no torchao")
    if options.device == "cuda" and (os.environ.get("SHARDC_GPU") != "1" or not torch.cuda.is_available()):
        skip("SHARDC_GPU is not 1, or there is no GPU")
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(options, pathlib.Path(name))
        job = job_of(runs)
        documents = words_of_repository(job.vocab)
        dataset.write_indexed(str(runs.folder / "text"), documents)
        saves = runs.folder / "saves"
        first = ["mixed_precision=fp32", "dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"]
        runs.shardc("initial", *first, "train.exit_interval=1", "optimizer.lr=1e-30", "optimizer.min_lr=0",
                    "checkpoint.save_optim=false", f'checkpoint.save="{saves}"')
        initial = torch_model.load_parameters(torch_model.newest(saves), options.device)
        batches = batches_of(job, documents, options.device)
        bf16 = runs.shardc("bf16")
        if options.fp8:
            good, curves = compare_fp8(runs, job, initial, batches, bf16)
        else:
            fp32 = runs.shardc("fp32", "mixed_precision=fp32")
            curves = torch_curves(job, initial, batches, options.device)
            good = compare(bf16, fp32, curves)
            curves |= {"ours bf16": bf16, "ours fp32": fp32}
    if options.out:
        options.out.write_text(json.dumps(curves))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
