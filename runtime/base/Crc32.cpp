#include "runtime/base/Crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <zlib.h>

namespace shardc {
namespace {

/// Zlib's function, for registers that are not inverted before and after.
uint32_t runLibrary(uint32_t crc, const uint8_t *data, size_t size) {
  return ~static_cast<uint32_t>(::crc32_z(~crc, data, size));
}

#if defined(__x86_64__)
__attribute__((target("pclmul,sse4.1"))) __m128i fold(__m128i x, __m128i next, __m128i constants) {
  __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
  __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// Folds whole blocks of 64 bytes into 16 bytes, several times as fast as zlib, which processes
/// those (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009,
/// with the constants). `size` must be at least 64.
__attribute__((target("pclmul,sse4.1"))) uint32_t runFolded(uint32_t crc, const uint8_t *data,
                                                            size_t size) {
  auto load = [](const uint8_t *at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
  };
  __m128i x0 = _mm_xor_si128(load(data), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i x1 = load(data + 16), x2 = load(data + 32), x3 = load(data + 48);
  data += 64;
  size -= 64;
  // The low half of a block is 64 bits further from the end than the high half.
  const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  for (; size >= 64; data += 64, size -= 64) {
    x0 = fold(x0, load(data), by512);
    x1 = fold(x1, load(data + 16), by512);
    x2 = fold(x2, load(data + 32), by512);
    x3 = fold(x3, load(data + 48), by512);
  }
  x0 = fold(fold(fold(x0, x1, by128), x2, by128), x3, by128);
  for (; size >= 16; data += 16, size -= 16)
    x0 = fold(x0, load(data), by128);
  uint8_t rest[16];
  _mm_storeu_si128(reinterpret_cast<__m128i *>(rest), x0);
  return runLibrary(runLibrary(0, rest, 16), data, size);
}

const bool kHasFolding = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif

} // namespace

uint32_t crc32(uint32_t previous, const void *data, size_t size) {
  auto *bytes = static_cast<const uint8_t *>(data);
#if defined(__x86_64__)
  if (size >= 128 && kHasFolding)
    return ~runFolded(~previous, bytes, size);
#endif
  return ~runLibrary(~previous, bytes, size);
}

uint32_t crc32Combine(uint32_t crcA, uint32_t crcB, uint64_t sizeB) {
  return static_cast<uint32_t>(::crc32_combine(crcA, crcB, static_cast<z_off_t>(sizeB)));
}

} // namespace shardc
