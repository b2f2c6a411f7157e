// SHA-256 (FIPS 180-4) of bytes that arrive in pieces. libsodium computes it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardc {

/// The state of one digest. Copies continue independently.
class Sha256 {
public:
  Sha256();
  /// Appends bytes. The digest does not depend on how they are divided among calls.
  void add(std::string_view bytes);
  /// The digest of the bytes added so far, as 64 hexadecimal digits. More can be added afterwards.
  std::string hex() const;

private:
  /// Holds libsodium's state. Only Sha256.cpp includes libsodium's header.
  struct alignas(8) State {
    std::array<uint8_t, 104> bytes;
  };
  State state_;
};

} // namespace shardc
