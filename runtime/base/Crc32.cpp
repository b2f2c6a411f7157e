#include "runtime/base/Crc32.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shardc {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u; // reflected
constexpr int kSlices = 8;

using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

/// Table s gives the effect of a byte that is followed by s zero bytes, so that several bytes are
/// added at a time.
constexpr Tables makeTables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice)
    for (uint32_t byte = 0; byte < 256; ++byte)
      tables[slice][byte] =
          (tables[slice - 1][byte] >> 8) ^ tables[0][tables[slice - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = makeTables();

/// Updates the register with `size` bytes, without inverting it before and after.
uint32_t runTables(uint32_t crc, const uint8_t *data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (int slice = 0; slice < 8; ++slice)
      crc ^= kTables[static_cast<size_t>(7 - slice)][(word >> (8 * slice)) & 0xff];
  }
  for (; size > 0; ++data, --size)
    crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xff];
  return crc;
}

/// a * b modulo the polynomial, both reflected (bit 31 is x^0).
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0)
      product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

/// The table of x^(2^k) modulo the polynomial, for each bit k of an exponent.
constexpr std::array<uint32_t, 64> makeSquares() {
  std::array<uint32_t, 64> squares = {0x40000000u}; // the polynomial x
  for (size_t k = 1; k < squares.size(); ++k)
    squares[k] = multiply(squares[k - 1], squares[k - 1]);
  return squares;
}

constexpr std::array<uint32_t, 64> kSquares = makeSquares();

/// Computes x^exponent modulo the polynomial with one multiplication per set bit.
constexpr uint32_t powerOfX(uint64_t exponent) {
  uint32_t power = 0x80000000u; // the polynomial 1
  for (size_t k = 0; exponent != 0; exponent >>= 1, ++k)
    if ((exponent & 1) != 0)
      power = multiply(power, kSquares[k]);
  return power;
}

#if defined(__x86_64__)
/// The constant that advances a 64-bit half of the fold by `bits` bits: x^bits, reflected to 33
/// bits.
constexpr uint64_t foldBy(uint64_t bits) { return static_cast<uint64_t>(powerOfX(bits)) << 1; }

__attribute__((target("pclmul,sse4.1"))) __m128i fold(__m128i x, __m128i next, __m128i constants) {
  __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
  __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/// Folds whole blocks of 64 bytes into 16 bytes, then processes those with the tables (Gopal et
/// al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009). `size` must be
/// at least 64.
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
  const __m128i by512 = _mm_set_epi64x(static_cast<long long>(foldBy(512 - 32)),
                                       static_cast<long long>(foldBy(512 + 32)));
  const __m128i by128 = _mm_set_epi64x(static_cast<long long>(foldBy(128 - 32)),
                                       static_cast<long long>(foldBy(128 + 32)));
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
  return runTables(runTables(0, rest, 16), data, size);
}

const bool kHasFolding = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif

} // namespace

uint32_t crc32Tables(uint32_t previous, const void *data, size_t size) {
  return ~runTables(~previous, static_cast<const uint8_t *>(data), size);
}

uint32_t crc32(uint32_t previous, const void *data, size_t size) {
#if defined(__x86_64__)
  if (size >= 128 && kHasFolding)
    return ~runFolded(~previous, static_cast<const uint8_t *>(data), size);
#endif
  return crc32Tables(previous, data, size);
}

uint32_t crc32Combine(uint32_t crcA, uint32_t crcB, uint64_t sizeB) {
  return multiply(powerOfX(sizeB * 8), crcA) ^ crcB;
}

} // namespace shardc
