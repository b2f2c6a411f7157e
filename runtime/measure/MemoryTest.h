// Writes patterns into memory, reads them back and counts differences.
#pragma once

#include <cstdint>

#include "runtime/hal/Backend.h"

namespace shardc::measure {

struct MemoryFindings {
  int64_t blocks = 0;     ///< written and read back twice
  int64_t differing = 0;  ///< blocks whose bytes differ from those written
  int64_t firstByte = -1; ///< first byte of the first differing block
};

/// Tests at least `bytes` bytes of the device's memory, rounded up to whole blocks: first with
/// words that differ from block to block and then with their complements, so that every bit is 0
/// once and 1 once. Returns an error if the device's memory cannot be written.
Result<MemoryFindings> testDeviceMemory(hal::Device &device, hal::Backend &backend, int64_t bytes);

/// Like testDeviceMemory(), for pinned host memory, which this process writes and reads.
Result<MemoryFindings> testHostMemory(hal::Device &device, int64_t bytes);

} // namespace shardc::measure
