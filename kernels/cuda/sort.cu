// The stable radix sort of CUB, for embedding.cu and dispatch.cu.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/Sort.h"

namespace shardc::kernels::cuda {

cudaError_t sortPairs(const SortedPairs &p, void *memory, size_t &memoryBytes,
                      cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(memory, memoryBytes, p.keys, p.sortedKeys, p.values,
                                         p.sortedValues, static_cast<int>(p.count), 0, p.bits,
                                         stream);
}

int bitsOfKeys(int64_t largest) {
  int bits = 1;
  while ((int64_t{1} << bits) <= largest)
    ++bits;
  return bits;
}

} // namespace shardc::kernels::cuda
