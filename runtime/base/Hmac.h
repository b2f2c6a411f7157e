// Keys and authentication codes (HMAC-SHA-256) for what the processes of a job say to each other,
// and the random bytes that make their messages fresh. The arithmetic is libsodium's.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace shardc {

inline constexpr size_t kKeyBytes = 32;

/// A secret of 32 bytes.
using Key = std::array<uint8_t, kKeyBytes>;
/// What shows that somebody with the key wrote something.
using AuthCode = std::array<uint8_t, 32>;
/// A number that is used once.
using Nonce = std::array<uint8_t, 32>;

/// From the system's generator. Waits for its seed in the first seconds of a machine's life.
std::array<uint8_t, 32> randomBytes32();

/// The code of the parts, each with its length before it, so that different parts never give the
/// same text.
AuthCode authCode(const Key &key, std::initializer_list<std::string_view> parts);
/// Compares in constant time.
bool isSame(const AuthCode &a, const AuthCode &b);
/// Derives another key, from which this one cannot be computed; the parts say what it is for.
inline Key deriveKey(const Key &key, std::initializer_list<std::string_view> parts) {
  return authCode(key, parts);
}

/// The bytes as a text.
inline std::string_view bytesOf(const std::array<uint8_t, 32> &bytes) {
  return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}
/// False if the text is not 32 bytes.
bool copyBytes(std::string_view text, std::array<uint8_t, 32> &bytes);

} // namespace shardc
