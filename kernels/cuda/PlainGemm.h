// Hand-written products for extents that cuBLASLt does not support (odd rows of 16-bit elements),
// products of one row, and the steps after a product that cuBLASLt's epilogues do not support.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Queue.h"

namespace shardc::kernels::cuda {

/// Enqueues the product.
void launchPlainGemm(const Gemm &gemm, Queue &queue);

/// Enqueues a product of one row of 16-bit elements and a transposed matrix, which it reads faster
/// than library kernels do. Returns false and enqueues nothing for any other product.
bool launchRowProduct(const Gemm &gemm, Queue &queue);

/// c[t,:] (+)= product[t,:] + bias, with an fp32 product. `bias` may be null. The result is rounded
/// once.
void launchFinishProduct(const float *product, const Tensor *bias, const Tensor &c, Queue &queue);

/// Fills `data` with small random numbers for timing: the time of a product depends on the bits of
/// its operands.
void launchRandom(void *data, DType type, int64_t count, Queue &queue);

/// Normally distributed numbers for timing, in f32, bf16 or f16; `key` selects the sequence.
void launchNormal(void *data, DType type, int64_t count, double std, uint32_t key, Queue &queue);

/// to[i] = from[offset + i] in fp32, for `count` elements.
void launchToFloats(const Tensor &from, int64_t offset, int64_t count, float *to, Queue &queue);

} // namespace shardc::kernels::cuda
