// Writes patterns into memory and reads them back.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/hal/Backend.h"

namespace shardc::measure {

struct MemoryFindings {
  int64_t blocks = 0;     ///< that were written and read back, twice
  int64_t differing = 0;  ///< blocks with other bytes than were written
  int64_t firstByte = -1; ///< of the first one
};

/// Tests so many bytes of the device's memory, rounded up to whole blocks: numbers that differ from
/// block to block, and then their complements, so that every bit is 0 and 1 once. A device whose
/// memory cannot be written is an error.
Result<MemoryFindings> testDeviceMemory(hal::Device &device, hal::Backend &backend, int64_t bytes);

/// The same for pinned memory of the host, which this process writes and reads.
Result<MemoryFindings> testHostMemory(hal::Device &device, int64_t bytes);

} // namespace shardc::measure
