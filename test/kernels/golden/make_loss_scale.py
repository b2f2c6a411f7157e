#!/usr/bin/env python3
"""Makes loss_scale.txt: what 200 steps with injected overflows do to a loss scale, by PyTorch's GradScaler. Megatron-Core's
DynamicGradScaler is PyTorch's with a smallest scale and a hysteresis; where these have an effect it is written out here from its
description: an overflow takes one from the hysteresis, from its end on each overflow halves the scale, and growth restores it.

A line: "history", first scale, smallest scale, steps until it grows, hysteresis, which steps overflow, the scale after each.
"""

import pathlib
import random

import torch

STEPS = 200


def by_torch(first, interval, overflows):
    scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scales = []
    for overflow in overflows:
        scaler.scale(weight * 1.0).backward()
        if overflow:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales


def by_description(first, smallest, interval, hysteresis, overflows):
    scale, grown, left, scales = first, 0, hysteresis, []
    for overflow in overflows:
        if overflow:
            grown, left = 0, left - 1
            if left <= 0:
                scale = max(scale / 2, smallest)
        else:
            grown += 1
            if grown == interval:
                grown, left, scale = 0, hysteresis, scale * 2
        scales.append(scale)
    return scales


def main():
    draw = random.Random(2026)
    lines = []
    for first, smallest, interval, hysteresis, share in [
        (65536.0, 2.0**-20, 5, 1, 0.1),
        (2.0**32, 2.0**-60, 10, 1, 0.3),
        (2.0**126, 2.0**-20, 3, 1, 0.02),
        (2.0**32, 1.0, 10, 2, 0.3),
        (1024.0, 16.0, 7, 3, 0.25),
        (8.0, 8.0, 4, 2, 0.4),
    ]:
        overflows = [draw.random() < share or step in range(40, 52) for step in range(STEPS)]
        scales = by_description(first, smallest, interval, hysteresis, overflows)
        if hysteresis == 1 and min(scales) > smallest:
            theirs = by_torch(first, interval, overflows)
            if max(scales) < 2.0**128:
                assert theirs == scales
            scales = theirs
        flags = "".join("1" if overflow else "0" for overflow in overflows)
        lines.append(f"history {first!r} {smallest!r} {interval} {hysteresis} {flags} " + " ".join(map(repr, scales)))
    pathlib.Path(__file__).with_name("loss_scale.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
