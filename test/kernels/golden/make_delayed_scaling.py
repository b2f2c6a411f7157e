#!/usr/bin/env python3
"""Makes delayed_scaling.txt: what steps do to the scales of Transformer Engine's DelayedScaling, written with torch from its
description. The history's first row is that of the step under way. At the step's end the largest of the history, or that row,
gives the scale, (largest number of the type / amax) / 2^margin; where that amax is 0 or not finite the scale stays, and one that
is infinite becomes the largest f32. The history then turns by one row, and its first row is cleared.

A line: "delayed", len, 1 if the latest counts alone, margin, largest number of the type, what steps see, the scale after each.
"""

import pathlib
import random

import torch

STEPS = 40


def scales_of(length, most_recent, margin, largest, seen):
    history, scale, scales = torch.zeros(length), torch.ones(()), []
    for amax in seen:
        history[0] = amax
        amax = history[0].clone() if most_recent else torch.max(history)
        history = torch.roll(history, -1, 0)
        history[0] = 0
        new = (torch.tensor(largest) / amax) / 2.0**margin
        new = torch.where((amax > 0) & torch.isfinite(amax), new, scale)
        scale = torch.where(torch.isinf(new), torch.finfo(torch.float32).max, new)
        scales.append(scale.item())
    return scales


def main():
    draw = random.Random(2027)
    lines = []
    for length, most_recent, margin, kind in [(1, True, 0, torch.float8_e4m3fn), (1, False, 2, torch.float8_e5m2),
                                              (5, False, 0, torch.float8_e4m3fn), (5, True, 1, torch.float8_e4m3fn),
                                              (16, False, -1, torch.float8_e5m2)]:
        seen = []
        for _ in range(STEPS):
            special = draw.random()
            value = 10 ** draw.uniform(-9, 5)
            seen.append(0.0 if special < 0.1 else float("inf") if special > 0.98 else float("nan") if special > 0.96
                        else 1e-40 if special > 0.93 else torch.tensor(value).item())
        scales = scales_of(length, most_recent, margin, torch.finfo(kind).max, seen)
        lines.append(" ".join(map(str, ["delayed", length, int(most_recent), margin, torch.finfo(kind).max, *seen, *scales])))
    path = pathlib.Path(__file__).with_name("delayed_scaling.txt")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
