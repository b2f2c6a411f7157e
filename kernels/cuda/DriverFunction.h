// Looks up functions of the CUDA driver at run time, because programs do not link it.
#pragma once

#include <cuda_runtime.h>

namespace shardc::kernels::cuda {

/// Returns the CUDA 12 version of the driver function with this name, or null if there is none.
inline void *findDriverFunction(const char *name) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult state;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &state);
  return error == cudaSuccess && state == cudaDriverEntryPointSuccess ? found : nullptr;
}

} // namespace shardc::kernels::cuda
