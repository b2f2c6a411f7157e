// Turns errors of CUDA and NCCL into a Status: which call failed, on which device, and
// where.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Exhausted for memory, Unavailable for a device that is not there, else Internal.
Status toStatus(cudaError_t error, const char *call, const char *file, int line);
Status toStatus(ncclResult_t error, const char *call, const char *file, int line);

} // namespace shardc::cuda

/// Leaves the function with a status unless the call succeeds.
#define RETURN_IF_CUDA_ERROR(call)                                                                 \
  do {                                                                                             \
    if (auto error_ = (call); error_ != decltype(error_){})                                        \
      return ::shardc::cuda::toStatus(error_, #call, __FILE__, __LINE__);                          \
  } while (false)
