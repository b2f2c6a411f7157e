// The rows of CudaLimits.def, for kernels and for rules about `cluster.gpu`.
#pragma once

#include <cstdint>

namespace shardc {

/// The limits, in the order of their rows.
enum class CudaLimit : uint8_t {
#define CUDA_LIMIT(enumerator, ...) enumerator,
#include "runtime/base/CudaLimits.def"
};

/// One row: `most` is the largest size that kernels accept.
struct CudaLimitInfo {
  int64_t most;
  const char *what;    ///< unit of the size
  const char *refusal; ///< message of a kernel that refuses a larger call
};

/// The row of a limit.
constexpr CudaLimitInfo cudaLimit(CudaLimit limit) {
  constexpr CudaLimitInfo kInfos[] = {
#define CUDA_LIMIT(enumerator, most, what) {most, what, "more than " #most " " what},
#include "runtime/base/CudaLimits.def"
  };
  return kInfos[static_cast<int>(limit)];
}

/// Why CUDA kernels refuse a call with this size; null if they do not.
constexpr const char *cudaRefusal(CudaLimit limit, int64_t size) {
  return size > cudaLimit(limit).most ? cudaLimit(limit).refusal : nullptr;
}

} // namespace shardc
