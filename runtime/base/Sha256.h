// SHA-256 (FIPS 180-4) of bytes that come piece by piece. The arithmetic is libsodium's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardc {

class Sha256 {
public:
  Sha256();
  void add(std::string_view bytes);
  /// The digest of the bytes added so far, as 64 hexadecimal digits. More can be added afterwards.
  std::string hex() const;

private:
  /// libsodium's state, whose header only Sha256.cpp sees.
  struct alignas(8) State {
    std::array<uint8_t, 104> bytes;
  };
  State state_;
};

} // namespace shardc
