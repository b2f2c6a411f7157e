// Looks up functions of the CUDA driver, which is not linked.
#pragma once

#include <cuda_runtime.h>

namespace shardc::kernels::cuda {

/// The driver's function of that name in its CUDA 12 version; null if the driver lacks it.
inline void *findDriverFunction(const char *name) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult state;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &state);
  return error == cudaSuccess && state == cudaDriverEntryPointSuccess ? found : nullptr;
}

} // namespace shardc::kernels::cuda
