// Products of extents that cuBLASLt does not support (odd rows of bf16), and the steps after a
// product that its epilogues do not support.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Gemm.h"

namespace shardc::kernels::cuda {

/// The product by a plain kernel.
void launchPlainGemm(const Gemm &gemm, cudaStream_t stream);

/// c[t,:] (+)= product[t,:] + bias, from an fp32 product; `bias` may be null. Rounded once.
void launchFinishProduct(const float *product, const Tensor *bias, const Tensor &c,
                         cudaStream_t stream);

/// Small random numbers for timing: the time of a product depends on the bits of its factors.
void launchRandom(void *data, DType type, int64_t count, cudaStream_t stream);

/// to[i] = from[i] in fp32.
void launchToFloats(const Tensor &from, int64_t offset, int64_t count, float *to,
                    cudaStream_t stream);

} // namespace shardc::kernels::cuda
