#!/usr/bin/env python3
"""Prints the checksums in HalfTest.cpp: PyTorch's conversions between fp32 and half precision. NaNs count as 0."""

import zlib

import numpy as np
import torch


def checksum(tensor, bits):
    raw = torch.where(torch.isnan(tensor), torch.zeros_like(tensor), tensor)
    return f"{zlib.crc32(raw.contiguous().view(bits).numpy().tobytes()):#010x}"


def main():
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    print("every code as fp32", checksum(codes.float(), torch.int32))
    bits = np.arange(1 << 20, dtype=np.uint32) * np.uint32(2654435761)
    spread = torch.from_numpy(bits.view(np.float32).copy())
    print("spread floats as f16", checksum(spread.half(), torch.int16))
    print("spread floats as bf16", checksum(spread.bfloat16(), torch.int16))
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(0)), middles, np.nextafter(middles, np.float32(np.inf))]
    print("floats between codes as f16", checksum(torch.from_numpy(np.stack(near)).half(), torch.int16))


if __name__ == "__main__":
    main()
