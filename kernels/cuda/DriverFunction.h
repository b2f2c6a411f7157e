// Functions of the driver, which is not linked.
#pragma once

#include <cuda_runtime.h>

namespace shardc::kernels::cuda {

/// The driver's function of that name, as CUDA 12 has it; null if the driver has none.
inline void *findDriverFunction(const char *name) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult state;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &state);
  return error == cudaSuccess && state == cudaDriverEntryPointSuccess ? found : nullptr;
}

} // namespace shardc::kernels::cuda
