// Calls libsodium, which is initialised on first use.
#include "runtime/base/Hmac.h"

#include <cstring>

#include <sodium.h>

#include "runtime/base/Status.h"

namespace shardc {
namespace {

static_assert(crypto_auth_hmacsha256_BYTES == sizeof(AuthCode));

/// Initialises libsodium once per process. sodium_init() returns 1 if that was done before.
void setUp() {
  static const int status = ::sodium_init();
  SHARDC_CHECK(status >= 0, "libsodium does not start");
}

} // namespace

std::array<uint8_t, 32> randomBytes32() {
  setUp();
  std::array<uint8_t, 32> bytes;
  ::randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

/// Authenticates each part with its length before it, as 8 bytes in little-endian order. Otherwise
/// `ab`, `c` and `a`, `bc` would have the same code.
AuthCode authCode(const Key &key, std::initializer_list<std::string_view> parts) {
  setUp();
  auto bytesOfText = [](std::string_view text) {
    return reinterpret_cast<const unsigned char *>(text.data());
  };
  crypto_auth_hmacsha256_state state;
  ::crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  for (std::string_view part : parts) {
    std::array<unsigned char, 8> length;
    for (size_t i = 0; i < length.size(); ++i)
      length[i] = static_cast<unsigned char>(uint64_t{part.size()} >> (8 * i));
    ::crypto_auth_hmacsha256_update(&state, length.data(), length.size());
    ::crypto_auth_hmacsha256_update(&state, bytesOfText(part), part.size());
  }
  AuthCode code;
  ::crypto_auth_hmacsha256_final(&state, code.data());
  return code;
}

bool isSame(const AuthCode &a, const AuthCode &b) {
  return ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool copyBytes(std::string_view text, std::array<uint8_t, 32> &bytes) {
  if (text.size() != bytes.size())
    return false;
  std::memcpy(bytes.data(), text.data(), bytes.size());
  return true;
}

} // namespace shardc
