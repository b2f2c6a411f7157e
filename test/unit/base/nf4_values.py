#!/usr/bin/env python3
"""Prints the checksums in Nf4Test.cpp: blocks as bitsandbytes 0.50.2 quantises them on the CPU, and their numbers. Needs bitsandbytes and torch 2.15.

Its code for GPUs differs from that for CPUs in two places, in which this script takes that for GPUs: codes of blocks of zeros are 0 and not 7,
and codes of 8 bits are those of the nearest values. On CPUs, a table of 65,536 numbers gives the neighbour of 136 of 156,250.
"""

import zlib

import bitsandbytes.functional as bnb
import numpy as np
import torch

BLOCK = 64


def checksum(values):
    """Of their bytes; -0 counts as 0."""
    values = np.ascontiguousarray(values)
    return f"{zlib.crc32((values + values.dtype.type(0)).tobytes()):#010x}"


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


def quantized(numbers):
    codes, state = bnb.quantize_4bit(torch.from_numpy(numbers), blocksize=BLOCK, quant_type="nf4")
    codes.view(-1, BLOCK // 2)[state.absmax == 0] = 0
    return codes, state


def nested(scales):
    """The scales in 8 bits: their codes, the scales of groups, and what they stand for. The mean is rounded once, as PyTorch's is not on each
    machine. For f64, bitsandbytes searches the nearest values."""
    offset, values = scales.double().mean().float(), bnb.create_dynamic_map()
    codes, groups = torch.ops.bitsandbytes.quantize_blockwise((scales - offset).double(), values, 256)
    return codes, groups, bnb.dequantize_blockwise(codes, absmax=groups, code=values, blocksize=256) + offset


def main():
    print(f"map {checksum(bnb.create_dynamic_map())}")
    for what, numbers in (("10,240 spread", spread(10_240)), ("163,840 spread", spread(163_840)), ("10,000,384 spread", spread(10_000_384)),
                          ("near middles", near_middles())):
        codes, state = quantized(numbers)
        records = np.concatenate([state.absmax.numpy().view(np.uint8).reshape(-1, 4), codes.numpy().reshape(-1, BLOCK // 2)], axis=1)
        print(what, f"records {checksum(records)} numbers {checksum(bnb.dequantize_4bit(codes, state))}")
        scales, groups, state.absmax = nested(state.absmax)
        print("    scales in 8 bits:", f"codes {checksum(scales)} groups {checksum(groups)} numbers {checksum(bnb.dequantize_4bit(codes, state))}")


if __name__ == "__main__":
    main()
