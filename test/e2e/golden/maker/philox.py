"""Initial values by the rule of runtime/base/Philox.cpp, implemented independently in numpy.

A value depends only on the seed, the parameter's name and the element's index.
"""

import numpy as np

MASK32 = np.uint64(0xFFFFFFFF)


def philox4x32(counter, key):
    """Ten rounds of Philox4x32 on four uint64 arrays of 32-bit numbers, with a 64-bit key."""
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & MASK32,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & MASK32,
        )
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def fnv1a(data, value=0xCBF29CE484222325):
    """The 64-bit FNV-1a hash of bytes."""
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def stream_key(seed, name):
    """The key of the stream of random numbers that belongs to `name`."""
    digest = fnv1a(name.encode())
    b0, b1, _, _ = philox4x32(
        (np.array([digest & 0xFFFFFFFF]), np.array([digest >> 32]), np.array([0]), np.array([0])),
        seed,
    )
    return int(b1[0]) << 32 | int(b0[0])


def normals(seed, name, count):
    """The first `count` standard normal numbers of a stream, float32."""
    pairs = np.arange((count + 1) // 2, dtype=np.uint64)
    zero = np.zeros_like(pairs)
    b0, b1, _, _ = philox4x32(
        (pairs & MASK32, pairs >> np.uint64(32), zero, zero), stream_key(seed, name)
    )
    radius = np.sqrt(-2.0 * np.log((b0.astype(np.float64) + 1.0) * 2.0**-32))
    angle = 2.0 * np.pi * (b1.astype(np.float64) * 2.0**-32)
    values = np.empty(2 * len(pairs))
    values[0::2] = radius * np.cos(angle)
    values[1::2] = radius * np.sin(angle)
    return values[:count].astype(np.float32)
