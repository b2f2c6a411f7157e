#!/usr/bin/env python3
"""Times causal attention whose values and keys have different widths, with every implementation in PyTorch: the peers
of our latent attention.

    torch_attention.py [--heads=N,...] [--positions=N,...] [--out=FILE]

Prints the milliseconds of the forward pass, of the backward pass and of both, in bf16 for one sequence, with the
fastest implementation last. `shardc-cuda-bench --latent` prints ours. Implementations with `padded` pad values to the
width of keys, and cut the output. Exits with 77 without PyTorch or a GPU.
"""

import argparse
import json
import pathlib
import statistics
import sys

SKIPPED = 77

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

CHANNELS, VALUES = 192, 128  # DeepSeek V2 and V3, Moonlight
HEADS = (128, 16)  # DeepSeek-V3; one of eight tensor-parallel ranks of it, Moonlight, DeepSeek-V2-Lite
POSITIONS = (4096, 16384)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def padded(attend):
    """The same attention, with values padded to the width of keys."""
    def run(q, k, v, scale):
        width = v.shape[-1]
        return attend(q, k, F.pad(v, (0, q.shape[-1] - width)), scale)[..., :width]
    return run


def fused(backend):
    def run(q, k, v, scale):
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return run


def mask_of(positions, window=None, device="cuda"):
    """The mask of causal queries in blocks. Each query sees all keys before it, or `window` keys, itself included."""
    def sees(batch, head, q, k):
        return q >= k if window is None else (q >= k) & (q - k < window)
    return create_block_mask(sees, None, None, positions, positions, device=device)


def flexible(positions, device="cuda"):
    mask = mask_of(positions, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, scale: compiled(q, k, v, block_mask=mask, scale=scale)


def ways(positions):
    """Name -> attention of q, k [B,N,S,D] and v [B,N,S,E]."""
    named = {name: fused(name) for name in ("cudnn", "flash", "efficient")}
    named |= {f"{name}, padded": padded(fused(name)) for name in ("cudnn", "flash", "efficient")}
    return named | {"flex": flexible(positions)}


def operands(batch, heads, positions, channels=CHANNELS, values=VALUES, device="cuda"):
    """Queries, keys, values and the output's gradient in the layout of a model: [B,S,N,D] in memory."""
    make = lambda width: torch.randn(batch, positions, heads, width, device=device, dtype=torch.bfloat16).transpose(1, 2)
    q, k, v, dout = make(channels), make(channels), make(values), make(values)
    return *(t.requires_grad_() for t in (q, k, v)), dout


def milliseconds(run, repeats=11):
    """The median time on the device."""
    for _ in range(3):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]
    for begin, end in zip(marks[::2], marks[1::2]):
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in zip(marks[::2], marks[1::2]))


def timed(attend, q, k, v, dout, scale):
    """The milliseconds of the forward pass, of the backward pass, and of both together."""
    out = attend(q, k, v, scale)
    forward = milliseconds(lambda: attend(q, k, v, scale))
    backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    both = milliseconds(lambda: torch.autograd.grad(attend(q, k, v, scale), (q, k, v), dout))
    return {"forward": forward, "backward": backward, "both": both}


def fastest(named, q, k, v, dout, scale, say=print):
    """The milliseconds of each implementation that PyTorch accepts, the fastest one last."""
    found = {}
    for name, attend in named.items():
        try:
            found[name] = timed(attend, q, k, v, dout, scale)
        except (RuntimeError, NotImplementedError) as error:  # errors of torch.compile are RuntimeErrors too
            say(f"{name}: refused: {str(error).strip().splitlines()[0][:120]}")
        torch.cuda.empty_cache()
    return dict(sorted(found.items(), key=lambda way: -way[1]["both"]))


def main():
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=numbers, default=HEADS)
    parser.add_argument("--positions", type=numbers, default=POSITIONS)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no GPU")
        sys.exit(SKIPPED)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"{'heads':>5} {'positions':>9} {'way':<18} {'forward':>9} {'backward':>9} {'both':>9}  ms")
    results = []
    for heads in options.heads:
        for positions in options.positions:
            work = operands(1, heads, positions)
            for name, took in fastest(ways(positions), *work, CHANNELS ** -0.5).items():
                row = f"{took['forward']:>9.3f} {took['backward']:>9.3f} {took['both']:>9.3f}"
                print(f"{heads:>5} {positions:>9} {name:<18} {row}", flush=True)
                results.append({"heads": heads, "positions": positions, "way": name, **took})
            del work
    if options.out:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
