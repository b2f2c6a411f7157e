#!/usr/bin/env python3
"""Measures how much of AdamW's time is hidden if bf16 matrix products run at the same time on one GPU. Needs PyTorch
and nvcc.

    update_overlap.py [--parameters N] [--pairs K]

K pairs of products (16,384 x 2,048 x 12,288 and back) run alone, and AdamW of N parameters in fp32 (28 bytes each) runs
alone on grids of several sizes. Then both run concurrently: products on a stream of high priority, on all SMs or on
fewer (cuBLASLt's SM count), and AdamW on a stream of low priority. Prints milliseconds, and the part of AdamW's time
that is saved.
"""

import argparse
import ctypes
import pathlib
import subprocess
import tempfile

import torch

ADAMW = r"""
#include <cuda_runtime.h>
// Four elements a turn; the grid says how many SMs it takes.
__global__ void __launch_bounds__(512) adamw(float4 *weight, const float4 *gradient, float4 *mean, float4 *square, long count) {
  long stride = (long)gridDim.x * blockDim.x;
  for (long first = blockIdx.x * (long)blockDim.x + threadIdx.x; first < count; first += 2 * stride) {
    float4 w[2], g[2], m[2], s[2];
#pragma unroll
    for (int u = 0; u < 2; ++u)
      if (long i = first + u * stride; i < count)
        w[u] = __ldcs(weight + i), g[u] = __ldcs(gradient + i), m[u] = __ldcs(mean + i), s[u] = __ldcs(square + i);
#pragma unroll
    for (int u = 0; u < 2; ++u)
      if (long i = first + u * stride; i < count) {
        for (int k = 0; k < 4; ++k) {
          float &W = (&w[u].x)[k], &M = (&m[u].x)[k], &S = (&s[u].x)[k], G = (&g[u].x)[k];
          M = 0.9f * M + 0.1f * G;
          S = 0.95f * S + 0.05f * G * G;
          W = W * (1 - 1e-5f) - 1e-4f * M / (sqrtf(S) + 1e-8f);
        }
        __stcs(weight + i, w[u]), __stcs(mean + i, m[u]), __stcs(square + i, s[u]);
      }
  }
}
extern "C" void update(void *weight, void *gradient, void *mean, void *square, long count, int blocks, void *stream) {
  adamw<<<blocks, 512, 0, (cudaStream_t)stream>>>((float4 *)weight, (const float4 *)gradient, (float4 *)mean, (float4 *)square, count / 4);
}
"""
PIECES = 16  # launches of AdamW, as of as many blocks of parameters
REPEATS = 8


def library(folder):
    source, built = pathlib.Path(folder, "adamw.cu"), pathlib.Path(folder, "adamw.so")
    source.write_text(ADAMW, encoding="utf-8")
    subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch=native", "-Xcompiler", "-fPIC", "-shared", source, "-o", built], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.update.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long, ctypes.c_int, ctypes.c_void_p]
    return loaded


def milliseconds(work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPEATS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_200_000_000)
    parser.add_argument("--pairs", type=int, default=24)
    options = parser.parse_args()
    piece = options.parameters // PIECES // 4 * 4
    weight, gradient, mean, square = (torch.full((piece * PIECES,), 0.01, device="cuda") for _ in range(4))
    rows, inner, outer = 16384, 2048, 12288
    data = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
    up, down = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02 for shape in ((inner, outer), (outer, inner)))
    middle, result = (torch.empty(rows, width, device="cuda", dtype=torch.bfloat16) for width in (outer, inner))
    urgent, other = torch.cuda.Stream(priority=torch.cuda.Stream.priority_range()[1]), torch.cuda.Stream(priority=0)
    torch.cuda.set_stream(urgent)

    def products():
        for _ in range(options.pairs):
            torch.matmul(data, up, out=middle)
            torch.matmul(middle, down, out=result)

    with tempfile.TemporaryDirectory() as folder:
        update = library(folder).update

    def updates(stream, blocks):
        for at in range(0, 4 * piece * PIECES, 4 * piece):
            update(weight.data_ptr() + at, gradient.data_ptr() + at, mean.data_ptr() + at, square.data_ptr() + at, piece, blocks, stream.cuda_stream)

    def both(blocks):
        other.wait_stream(urgent)
        updates(other, blocks)
        products()
        urgent.wait_stream(other)

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; {options.pairs} pairs of products, {piece * PIECES:,} parameters")
    for blocks in (16, 32, 48, 64, 96, 4 * sms):
        print(f"AdamW alone, {blocks:3} blocks: {milliseconds(lambda: updates(urgent, blocks)):6.2f} ms")
    alone = milliseconds(lambda: updates(urgent, 4 * sms))
    for kept in (0, 16, 32, 48):
        for blocks in [kept, 2 * kept] if kept else [32, 4 * sms]:
            in_turn = milliseconds(products) + alone
            torch._C._set_sm_carveout_experimental(kept or None)  # pylint: disable=protected-access
            fewer = milliseconds(products)
            beside = milliseconds(lambda: both(blocks))
            torch._C._set_sm_carveout_experimental(None)  # pylint: disable=protected-access
            print(f"products on {sms - kept} SMs: {fewer:.2f} ms; with AdamW in {blocks} blocks beside them {beside:.2f}, in turn {in_turn:.2f}: "
                  f"{100 * (in_turn - beside) / alone:.0f} % of AdamW saved")


if __name__ == "__main__":
    main()
