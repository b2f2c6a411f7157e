// The rows of CudaLimits.def, for kernels and for rules about `cluster.gpu`.
#pragma once

#include <cstdint>

namespace shardc {

enum class CudaLimit : uint8_t {
#define CUDA_LIMIT(enumerator, ...) enumerator,
#include "runtime/base/CudaLimits.def"
};

struct CudaLimitInfo {
  int64_t most;
  const char *what;    ///< that the size counts
  const char *refusal; ///< of a kernel whose call has more
};

constexpr CudaLimitInfo cudaLimit(CudaLimit limit) {
  constexpr CudaLimitInfo kInfos[] = {
#define CUDA_LIMIT(enumerator, most, what) {most, what, "more than " #most " " what},
#include "runtime/base/CudaLimits.def"
  };
  return kInfos[static_cast<int>(limit)];
}

/// Null, or why a CUDA kernel refuses a call with such a size.
constexpr const char *cudaRefusal(CudaLimit limit, int64_t size) {
  return size > cudaLimit(limit).most ? cudaLimit(limit).refusal : nullptr;
}

} // namespace shardc
