#!/usr/bin/env python3
"""Times PyTorch's AdamW and Muon, both compiled, on the matrices of a model: the peer of shardc's Muon on a GPU.

    muon_peer.py [--hidden H --ffn F --heads N --groups G --head D --layers L --experts E --expert-ffn F --vocab V] [--steps N]

Prints the milliseconds that an update of all parameters takes with fused AdamW, with torch.optim.Muon as it is, and
with the same compiled; tables and norms use AdamW. Defaults are the sizes of llama_1b. Needs torch >= 2.9 and a GPU. A
training step takes the time of its forward and backward pass plus one of these. The trace of a run has shardc's own
times (`shardc report`).
"""

import argparse
import json

import torch


def shapes(args):
    """Two lists of shapes: matrices in Megatron's layout, and other parameters."""
    qkv = args.head * (args.heads + 2 * args.groups)
    layer = [(qkv, args.hidden), (args.hidden, args.heads * args.head)]
    if args.experts:
        layer += [(args.experts, args.hidden)]
        layer += [(2 * args.expert_ffn, args.hidden), (args.hidden, args.expert_ffn)] * args.experts
    else:
        layer += [(2 * args.ffn, args.hidden), (args.hidden, args.ffn)]
    tables = [(args.vocab, args.hidden)] * 2
    return layer * args.layers, tables + [(args.hidden,)] * (2 * args.layers + 1)


def timed(update, steps):
    for _ in range(3):
        update()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        update()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("hidden", 2048), ("ffn", 8192), ("heads", 32), ("groups", 8), ("head", 64), ("layers", 16),
                        ("experts", 0), ("expert-ffn", 768), ("vocab", 128256), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    matrices, others = shapes(args)

    def params(of):
        made = [torch.nn.Parameter(torch.randn(shape, device="cuda") * 0.02) for shape in of]
        for param in made:
            param.grad = torch.randn_like(param) * 1e-3
        return made

    first, rest = params(matrices), params(others)
    adam = torch.optim.AdamW(first + rest, lr=1e-3, fused=True)
    told = {"adamw_ms": timed(adam.step, args.steps)}
    del adam
    small = torch.optim.AdamW(rest, lr=1e-3, fused=True)
    muon = torch.optim.Muon(first, lr=1e-3, momentum=0.95, ns_steps=5)

    def update():
        muon.step()
        small.step()

    told["muon_ms"] = timed(update, args.steps)
    compiled = torch.compile(muon.step)

    def update_compiled():
        compiled()
        small.step()

    told["muon_compiled_ms"] = timed(update_compiled, args.steps)
    told["parameters"] = sum(param.numel() for param in first + rest)
    told["torch"], told["device"] = torch.__version__, torch.cuda.get_device_name()
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
