#include "runtime/base/Sha256.h"

#include <sodium.h>

namespace shardc {
namespace {

template <typename State> crypto_hash_sha256_state *stateOf(State &state) {
  static_assert(sizeof(State) == sizeof(crypto_hash_sha256_state));
  static_assert(alignof(State) >= alignof(crypto_hash_sha256_state));
  return reinterpret_cast<crypto_hash_sha256_state *>(&state);
}

} // namespace

Sha256::Sha256() { ::crypto_hash_sha256_init(stateOf(state_)); }

void Sha256::add(std::string_view bytes) {
  ::crypto_hash_sha256_update(stateOf(state_),
                              reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size());
}

std::string Sha256::hex() const {
  State copy = state_;
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest;
  ::crypto_hash_sha256_final(stateOf(copy), digest.data());
  std::string text;
  for (unsigned char byte : digest) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

} // namespace shardc
