#!/usr/bin/env python3
"""Tells whether training differs from PyTorch's by more than chance: pairs of runs from nearly equal weights.

    pairs_of_runs.py SHARDC [--device=cuda|cpu] [--pairs=N] [--steps=N] [--precision=fp32,bf16_mixed] [--distance=D]
                     [--first=N] [--jobs=N] [--out=FILE]

The first save of a run gives the weights; pair i multiplies each by 1 + D n, n normal with seed i. Both programs then
train on the same text, the modules of Python's standard library as bytes, in the same order. Rounding grows until the
losses of a pair are far apart, so one pair shows nothing: means and spreads of the last losses and of an evaluation over
all pairs do. The programs agree if the difference of means is within 2.5 standard errors, each program's spread being its
standard deviation over the pairs. In bf16, a D of 1e-7 changes few rounded weights, so that runs of one program stay
closer together than runs in bf16 can be; a large D gives pairs that are independent. Prints a table; --out writes all
losses as JSON. Exits with 77 without PyTorch or a GPU.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
LAST = 50  # losses that are averaged
EVALUATED = 16  # batches
LIMIT = 2.5
RECIPE = """recipe pair {{
  model llama {{
    num_layers = 8  hidden_size = 320  num_attention_heads = 5  num_query_groups = 5  ffn_hidden_size = 896
    seq_length = 512  vocab_size = 257
  }}
  cluster {{ gpu = {gpu}  nodes = 1  gpus_per_node = 1 }}
  dist {{ use_megatron_fsdp = true }}
  ddp {{ use_megatron_fsdp = true }}
  mixed_precision = {precision}
  dataset indexed {{
    train_data_path = ["{folder}/train"]  valid_data_path = ["{folder}/valid"]  test_data_path = ["{folder}/valid"]
    random_seed = 110
  }}
  optimizer adam {{ lr = 1e-3  min_lr = 1e-4  weight_decay = 0.1  betas = (0.9, 0.95)  eps = 1e-8  clip_grad = 1.0 }}
  scheduler cosine {{ lr_warmup_iters = 20 }}
  train {{ micro_batch_size = 16  global_batch_size = 16  train_iters = {steps} }}
  validation {{ eval_interval = {steps}  eval_iters = {evaluated} }}
  logger {{ log_interval = 1 }}
}}
"""


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


try:
    import numpy as np
    import torch

    sys.path.insert(0, str(ROOT / "test/e2e/golden"))
    from maker import dataset

    import torch_model
except ImportError as error:
    skip(error)


def documents():
    """Training and validation documents: modules as bytes; each twentieth is for validation."""
    paths = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")) + sorted(
        pathlib.Path(sysconfig.get_path("stdlib")).glob("[a-su-z]*/*.py"))
    found = [np.frombuffer(path.read_bytes(), np.uint8).astype(np.uint16) for path in paths if "site-packages" not in str(path)]
    found = [np.append(doc, np.uint16(dataset.END_OF_DOCUMENT)) for doc in found if len(doc) > 1000]
    return [d for i, d in enumerate(found) if i % 20], [d for i, d in enumerate(found) if i % 20 == 0]


def call(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}\nstatus {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Pairs:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.training, self.validation = documents()
        dataset.write_indexed(str(folder / "train"), self.training)
        dataset.write_indexed(str(folder / "valid"), self.validation)
        self.job = torch_model.Job(family="llama", layers=8, heads=5, groups=5, vocab=257, lr=1e-3, min_lr=1e-4, warmup=20,
                                   steps=options.steps, batch=16, sequence=512)
        self.orders = [dataset.SampleOrder(docs, count * self.job.batch, self.job.sequence, 110)
                       for docs, count in ((self.training, options.steps), (self.validation, 2 * EVALUATED))]

    def recipe(self, precision, name):
        path = self.folder / f"{name}.recipe"
        gpu = "host" if self.options.device == "cpu" else "h200"
        path.write_text(RECIPE.format(gpu=gpu, precision=precision, folder=self.folder, steps=self.options.steps,
                                      evaluated=EVALUATED))
        return path

    def make_weights(self):
        """Folders with the weights of each pair."""
        saves, model = self.folder / "saves", self.folder / "model"
        call(self.options.shardc, "run", self.recipe("fp32", "initial"), "--set=train.exit_interval=1", "--set=optimizer.lr=1e-30",
             "--set=optimizer.min_lr=0", "--set=checkpoint.save_optim=false", f'--set=checkpoint.save="{saves}"')
        call(self.options.shardc, "ckpt", "export", "hf", saves, model)
        folders = []
        (file,) = model.glob("*.safetensors")
        kept = file.read_bytes()
        size = 8 + int.from_bytes(kept[:8], "little")
        values = np.frombuffer(kept[size:], "<f4")
        for pair in range(self.options.pairs):
            noise = np.random.default_rng(self.options.first + pair).standard_normal(values.shape)
            file.write_bytes(kept[:size] + (values * (1 + self.options.distance * noise)).astype("<f4").tobytes())
            folders.append(self.folder / f"weights{pair}")
            call(self.options.shardc, "ckpt", "import", "hf", model, folders[-1])
        return folders

    def train_here(self, precision, pair, weights):
        """Losses of the steps and of the evaluation in shardc."""
        name = f"{precision}{pair}"
        metrics = self.folder / f"{name}.jsonl"
        call(self.options.shardc, "run", self.recipe(precision, name), f'--set=checkpoint.load="{weights}"',
             "--set=checkpoint.finetune=true", f"--metrics={metrics}")
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        losses = [record["loss"] for record in records if "loss" in record]
        (last,) = [record["eval_loss"] for record in records if "eval_loss" in record][-1:]
        return [*losses, last]

    def rows(self, order, first):
        taken = [order.sample(first * self.job.batch + i) for i in range(self.job.batch)]
        return torch.from_numpy(np.stack(taken)).to(self.options.device)

    def train_in_torch(self, precision, weights):
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        initial = torch_model.load_parameters(torch_model.newest(weights), self.options.device)
        batches = [self.rows(self.orders[0], step) for step in range(self.options.steps)]
        kernel = "flash" if precision != "fp32" else "efficient" if self.options.device == "cuda" else "math"
        final = {}
        losses = torch_model.train(self.job, initial, lambda step: batches[step], dtype, kernel, final=final)
        weights = {name: value.to(dtype) for name, value in final.items()} | {"fp8": None}
        with torch.no_grad():
            evaluated = [torch_model.loss_of(weights, self.job, text[:, :-1], text[:, 1:]).item()
                         for text in (self.rows(self.orders[1], batch) for batch in range(EVALUATED))]
        return [*losses, statistics.fmean(evaluated)]


def report(name, ours, theirs):
    """Prints means and spreads of figures of both programs. True if their difference is within LIMIT standard errors."""
    means = [statistics.fmean(values) for values in (ours, theirs)]
    spreads = [statistics.stdev(values) for values in (ours, theirs)]
    error = ((spreads[0] ** 2 + spreads[1] ** 2) / len(ours)) ** 0.5
    apart = (means[0] - means[1]) / error if error else 0.0
    print(f"{name:<24} shardc {means[0]:.5f} +- {spreads[0]:.5f}  torch {means[1]:.5f} +- {spreads[1]:.5f}  "
          f"difference {100 * (means[0] / means[1] - 1):+.3f} %  {apart:+.2f} standard errors", flush=True)
    return abs(apart) <= LIMIT


def first_apart(ours, theirs, limit):
    """The first step at which a pair's losses differ by more than `limit` of the loss, or the number of steps."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if abs(a - b) > limit * b), len(ours))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--precision", default="fp32,bf16_mixed")
    parser.add_argument("--distance", type=float, default=1e-7)
    parser.add_argument("--first", type=int, default=0, help="seed of the first pair")
    parser.add_argument("--jobs", type=int, default=1, help="runs of shardc at a time")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if options.device == "cuda" and (os.environ.get("SHARDC_GPU") != "1" or not torch.cuda.is_available()):
        skip("SHARDC_GPU is not 1, or there is no GPU")
    good, kept = True, {}
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        pairs = Pairs(options, pathlib.Path(name))
        weights = pairs.make_weights()
        for precision in options.precision.split(","):
            ours = list(pool.map(lambda i: pairs.train_here(precision, i, weights[i]), range(options.pairs)))
            theirs = [pairs.train_in_torch(precision, folder) for folder in weights]
            kept[precision] = {"shardc": ours, "torch": theirs}
            last = [[statistics.fmean(run[-1 - LAST:-1]) for run in runs] for runs in (ours, theirs)]
            good &= report(f"{precision}, last {LAST} losses", *last)
            good &= report(f"{precision}, evaluation", *([run[-1] for run in runs] for runs in (ours, theirs)))
            print(f"{precision}: first loss {ours[0][0]:.6f} and {theirs[0][0]:.6f}; losses of a pair agree within 1e-5 for "
                  f"{[first_apart(a[:-1], b[:-1], 1e-5) for a, b in zip(ours, theirs)]} steps, within 1e-2 for "
                  f"{[first_apart(a[:-1], b[:-1], 1e-2) for a, b in zip(ours, theirs)]}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(kept))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
