// The stable sort that kernels of several files use, since a library's sort takes long to compile.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace shardc::kernels::cuda {

/// Keys of so many bits with their values, in device memory. Both have as many elements.
struct SortedPairs {
  const uint32_t *keys;
  const int32_t *values;
  uint32_t *sortedKeys;
  int32_t *sortedValues;
  int64_t count;
  int bits;
};

/// Sorts by key, equal keys in their order. Without `memory` it only sets memoryBytes, to what the
/// sort needs beside the arrays, which depends on count and bits alone.
cudaError_t sortPairs(const SortedPairs &pairs, void *memory, size_t &memoryBytes,
                      cudaStream_t stream);

/// Bits of keys that are at most `largest`.
int bitsOfKeys(int64_t largest);

} // namespace shardc::kernels::cuda
