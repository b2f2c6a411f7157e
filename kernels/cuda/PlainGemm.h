// Hand-written products for extents that cuBLASLt does not support (odd rows of 16-bit elements),
// and steps after a product that its epilogues do not support.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Gemm.h"
#include "kernels/cuda/Queue.h"

namespace shardc::kernels::cuda {

/// Enqueues the product.
void launchPlainGemm(const Gemm &gemm, Queue &queue);

/// c[t,:] (+)= product[t,:] + bias, from an fp32 product; `bias` may be null. Rounded once.
void launchFinishProduct(const float *product, const Tensor *bias, const Tensor &c, Queue &queue);

/// Small random numbers for timing: the time of a product depends on the bits of its factors.
void launchRandom(void *data, DType type, int64_t count, Queue &queue);

/// Normally distributed numbers for timing, in f32, bf16 or f16; `key` selects the sequence.
void launchNormal(void *data, DType type, int64_t count, double std, uint32_t key, Queue &queue);

/// to[i] = from[i] in fp32.
void launchToFloats(const Tensor &from, int64_t offset, int64_t count, float *to, Queue &queue);

} // namespace shardc::kernels::cuda
