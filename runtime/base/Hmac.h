// Keys, authentication codes (HMAC-SHA-256) and random nonces for messages between the processes of
// a job. libsodium computes them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace shardc {

inline constexpr size_t kKeyBytes = 32;

/// A secret of 32 bytes.
using Key = std::array<uint8_t, kKeyBytes>;
/// Authenticates a message: only processes with the key can compute it.
using AuthCode = std::array<uint8_t, 32>;
/// A number that is used once.
using Nonce = std::array<uint8_t, 32>;

/// 32 random bytes from the system's generator. Blocks until it is seeded, in the first seconds
/// after a machine starts.
std::array<uint8_t, 32> randomBytes32();

/// The authentication code of the parts. Each part is preceded by its length, so that different
/// lists of parts never give the same text.
AuthCode authCode(const Key &key, std::initializer_list<std::string_view> parts);
/// Whether the codes are equal; compares in constant time.
bool isSame(const AuthCode &a, const AuthCode &b);
/// Derives another key, from which `key` cannot be computed. The parts name its purpose.
inline Key deriveKey(const Key &key, std::initializer_list<std::string_view> parts) {
  return authCode(key, parts);
}

/// The bytes, as a view.
inline std::string_view bytesOf(const std::array<uint8_t, 32> &bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}
/// Copies the text to `bytes`; false if the text does not have 32 bytes.
bool copyBytes(std::string_view text, std::array<uint8_t, 32> &bytes);

} // namespace shardc
