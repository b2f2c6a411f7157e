#!/usr/bin/env python3
"""Prints the checksums in Nf4Test.cpp: blocks as bitsandbytes 0.49.0 quantises them on the CPU, and their numbers. Needs bitsandbytes and torch 2.8."""

import zlib

import bitsandbytes.functional as bnb
import numpy as np
import torch

BLOCK = 64


def spread(count):
    """Numbers with all amaxes from 2^-30 on. Each block has another amax; the first block consists of zeros."""
    index = np.arange(count, dtype=np.uint32)
    numbers = (index * np.uint32(2654435761)).astype(np.int32).astype(np.float32) * np.float32(2.0**-31)
    numbers *= np.exp2(-(index // BLOCK * 7 % 30).astype(np.float32))
    numbers[:BLOCK] = 0
    return numbers


def near_middles():
    """The midpoints between values of the table, and the neighbouring floats, in blocks with scale 1."""
    table = bnb.get_4bit_type("nf4", device="cpu").numpy()
    middles = ((table[:-1].astype(np.float64) + table[1:]) / 2).astype(np.float32)
    near = [middles]
    for towards in (-np.inf, np.inf):
        at = middles
        for _ in range(2):
            at = np.nextafter(at, np.float32(towards))
            near.append(at)
    blocks = np.ones((5, BLOCK), dtype=np.float32)
    blocks[:, : middles.size] = near
    return blocks.ravel()


def nested(count):
    """Codes and scales of the scales that blocks of such numbers have. Their mean is rounded once, as PyTorch's is not on each machine."""
    _, state = bnb.quantize_4bit(torch.from_numpy(spread(count)), blocksize=BLOCK, quant_type="nf4")
    offset = state.absmax.double().mean().float()
    return bnb.quantize_blockwise(state.absmax - offset, blocksize=256)


def main():
    print(f"map {zlib.crc32(bnb.create_dynamic_map().numpy().tobytes()):#010x}")
    for count in (163_840, 10_000_000):
        codes, state = nested(count)
        print(count, f"codes {zlib.crc32(codes.numpy().tobytes()):#010x} groups {zlib.crc32(state.absmax.numpy().tobytes()):#010x}")
    for what, numbers in (("10,240 spread", spread(10_240)), ("10,000,000 spread", spread(10_000_000)), ("near middles", near_middles())):
        codes, state = bnb.quantize_4bit(torch.from_numpy(numbers), blocksize=BLOCK, quant_type="nf4")
        records = np.concatenate([state.absmax.numpy().view(np.uint8).reshape(-1, 4), codes.numpy().reshape(-1, BLOCK // 2)], axis=1)
        floats = bnb.dequantize_4bit(codes, state).numpy()
        print(what, f"records {zlib.crc32(np.ascontiguousarray(records).tobytes()):#010x}",
              f"numbers {zlib.crc32(np.ascontiguousarray(floats + np.float32(0)).tobytes()):#010x}")


if __name__ == "__main__":
    main()
