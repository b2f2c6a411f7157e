"""Quantises to PyTorch's float8 types, with one scale per tensor or per block."""

import torch
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def saturated(x, dtype):
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def quantised(x, dtype):
    """x in `dtype`, scaled by its own amax, and the factor by which its products must be multiplied."""
    amax = x.abs().max().float()
    by = torch.where(amax > 0, torch.finfo(dtype).max / amax, 1.0)
    return saturated(x.float() * by, dtype), 1 / by


class DelayedScales:
    """Transformer Engine's delayed scaling for all tensors, each by a key.

    https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html: DelayedScaling."""

    def __init__(self, length, most_recent, margin):
        self.length, self.most_recent, self.margin = length, most_recent, margin
        self.history, self.scale, self.dtype = {}, {}, {}

    def quantised(self, x, dtype, key):
        """Quantises with the scale from earlier steps, and records the amax."""
        if key not in self.scale:
            self.history[key] = torch.zeros(self.length, device=x.device)
            self.scale[key], self.dtype[key] = torch.ones((), device=x.device), dtype
        history, by = self.history[key], self.scale[key]
        history[0] = torch.maximum(history[0], x.abs().max().float())
        return saturated(x.float() * by, dtype), 1 / by

    def update(self):
        """Computes new scales at the end of a step."""
        for key, history in self.history.items():
            amax = history[0].clone() if self.most_recent else history.max()
            new = amax.new_tensor(torch.finfo(self.dtype[key]).max) / amax / 2.0**self.margin
            new = torch.where(new.isinf(), torch.finfo(torch.float32).max, new)
            self.scale[key] = torch.where((amax > 0) & amax.isfinite(), new, self.scale[key])
            self.history[key] = torch.roll(history, -1, 0)
            self.history[key][0] = 0


def block_quantised(x, dtype, blocks, is_weight=False):
    """The values that a matrix has after quantisation by blocks with power-of-two scales, in fp32. `blocks` is
    "blockwise" or "mxfp8"."""
    largest = torch.finfo(dtype).max
    rows, cols = (1, 32) if blocks == "mxfp8" else (128 if is_weight else 1, 128)
    height, width = x.shape
    padded = F.pad(x.float(), (0, -width % cols, 0, -height % rows))
    tiles = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)
    amax = tiles.abs().amax((1, 3), keepdim=True)
    if blocks == "mxfp8":  # the smallest sufficient power of two
        mantissa, exponent = torch.frexp(amax * torch.tensor(1 / largest))
        scale = torch.ldexp(torch.ones_like(amax), exponent - (mantissa == 0.5).int())
    else:  # the largest power of two that the quotient allows
        _, exponent = torch.frexp(largest / amax)
        scale = torch.ldexp(torch.ones_like(amax), 1 - exponent)
    scale = torch.where(amax > 0, scale, 1.0)
    numbers = saturated(tiles / scale, dtype).float() * scale
    return numbers.view(padded.shape)[:height, :width]
