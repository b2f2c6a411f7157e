// Converts errors of CUDA and NCCL to a Status that names the call, the device and the source line.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Exhausted if memory is lacking, Unavailable if the device does not exist, otherwise Internal.
Status toStatus(cudaError_t error, const char *call, const char *file, int line);
Status toStatus(ncclResult_t error, const char *call, const char *file, int line);

} // namespace shardc::cuda

/// Returns the status from the function if the call fails.
#define RETURN_IF_CUDA_ERROR(call)                                                                 \
  do {                                                                                             \
    if (auto error_ = (call); error_ != decltype(error_){})                                        \
      return ::shardc::cuda::toStatus(error_, #call, __FILE__, __LINE__);                          \
  } while (false)
