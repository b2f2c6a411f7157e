// CRC-32 as in zip (polynomial 0x04C11DB7, reflected), fast enough to keep up with a disk:
// carry-less multiplication if the processor supports it, otherwise tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardc {

/// CRC of `previous`'s bytes followed by these; start with 0.
uint32_t crc32(uint32_t previous, const void *data, size_t size);

/// CRC of A followed by B from the CRC of each and B's length.
uint32_t crc32Combine(uint32_t crcA, uint32_t crcB, uint64_t sizeB);

/// The same as crc32, with tables only; for the tests.
uint32_t crc32Tables(uint32_t previous, const void *data, size_t size);

} // namespace shardc
