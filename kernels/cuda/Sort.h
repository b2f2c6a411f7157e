// A stable sort in one object file, because the library's sort compiles slowly.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace shardc::kernels::cuda {

/// Keys (with `bits` significant bits) and their values in device memory, input and output.
struct SortedPairs {
  const uint32_t *keys;
  const int32_t *values;
  uint32_t *sortedKeys;
  int32_t *sortedValues;
  int64_t count;
  int bits;
};

/// Sorts by key, stably. If `memory` is null, only sets memoryBytes to the size of the scratch,
/// which depends on count and bits alone.
cudaError_t sortPairs(const SortedPairs &pairs, void *memory, size_t &memoryBytes,
                      cudaStream_t stream);

/// Number of significant bits of keys up to `largest`.
int bitsOfKeys(int64_t largest);

} // namespace shardc::kernels::cuda
