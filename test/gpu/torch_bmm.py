#!/usr/bin/env python3
"""Times the six products of a layer of experts in cuBLAS on one GPU. Each expert has a weight and equally many rows.

    torch_bmm.py [--device=cuda]

Prints milliseconds in bf16 for all six products in sequence: the forward pass, and gradients of inputs and weights. The
result is the median of twelve runs, after four warm-up runs and a pause. It is a lower bound for any layer of experts
that uses cuBLAS, however rows are exchanged.
"""

import argparse
import time

import torch

# name: rows, hidden size, width of an expert, experts
LAYERS = {"gpt_oss_20b": (32768, 2880, 2880, 32), "deepseek_v3_ep8": (16384, 7168, 2048, 32), "moonlight_16b": (49152, 2048, 1408, 64),
          "qwen3_30b_a3b": (131072, 2048, 768, 128), "mixtral_8x7b": (16384, 4096, 14336, 8)}
WARMUPS, RUNS = 4, 12


def milliseconds(run, device):
    """The median of RUNS runs."""
    for _ in range(WARMUPS):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        torch.cuda.synchronize()
        times = [before.elapsed_time(after) for before, after in zip(marks, marks[1:])]
    else:
        marks = [time.perf_counter()]
        for _ in range(RUNS):
            run()
            marks.append(time.perf_counter())
        times = [1e3 * (after - before) for before, after in zip(marks, marks[1:])]
    return sorted(times)[RUNS // 2]


def products(rows, channels, width, experts, device):
    """All six products as one function."""
    def normal(*shape):
        return torch.randn(experts, *shape, device=device, dtype=torch.bfloat16)
    each = rows // experts
    x, unit, gated = normal(each, channels), normal(each, width), normal(each, 2 * width)
    first, second = normal(2 * width, channels) * 0.02, normal(channels, width) * 0.02

    def run():
        torch.bmm(x, first.transpose(1, 2))
        torch.bmm(unit, second.transpose(1, 2))
        torch.bmm(x, second)
        torch.bmm(gated, first)
        torch.bmm(x.transpose(1, 2), unit)
        torch.bmm(gated.transpose(1, 2), x)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--divide", type=int, default=1, help="rows and channels by this, to try the script")
    o = parser.parse_args()
    for name, (rows, channels, width, experts) in LAYERS.items():
        run = products(rows // o.divide, channels // o.divide, width // o.divide, experts, o.device)
        time.sleep(1)
        print(f"{name} {milliseconds(run, o.device):.3f}", flush=True)


if __name__ == "__main__":
    main()
