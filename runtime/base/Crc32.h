// CRC-32 as in zip (polynomial 0x04C11DB7, reflected). It uses carry-less multiplication if the
// processor supports it, otherwise zlib, and is fast enough to keep up with a disk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardc {

/// The CRC of some bytes followed by these bytes; `previous` is the CRC of the former, 0 at the
/// start.
uint32_t crc32(uint32_t previous, const void *data, size_t size);

/// The CRC of A followed by B, computed from both CRCs and the length of B.
uint32_t crc32Combine(uint32_t crcA, uint32_t crcB, uint64_t sizeB);

} // namespace shardc
