#!/usr/bin/env python3
"""Prints the checksums in Float8Test.cpp: PyTorch's conversions between fp32 and its 8-bit types. NaNs count as 0."""

import zlib

import numpy as np
import torch


def checksum(values, nan):
    raw = np.where(nan, 0, values).astype(values.dtype)
    return f"{zlib.crc32(np.ascontiguousarray(raw).tobytes()):#010x}"


def main():
    for name, dtype, end in (("e4m3", torch.float8_e4m3fn, 0x7F), ("e5m2", torch.float8_e5m2, 0x7C)):
        floats = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).float().numpy()
        print(name, "every code as fp32", checksum(floats.view(np.uint32), np.isnan(floats)))
        finite = floats[:end].astype(np.float64)
        middles = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
        near = [np.nextafter(middles, np.float32(0)), middles, np.nextafter(middles, np.float32(np.inf))]
        bits = np.arange(10_000_000, dtype=np.uint32) * np.uint32(2654435761)
        for what, values in (("spread floats", bits.view(np.float32)), ("floats between codes", np.concatenate(near))):
            codes = torch.from_numpy(values.copy()).to(dtype)
            print(name, what, checksum(codes.view(torch.uint8).numpy(), np.isnan(codes.float().numpy())))


if __name__ == "__main__":
    main()
