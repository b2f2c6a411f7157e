// The byte tokenizer: each byte of the text is a token, and one more token ends a document.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace shardc::data {

/// The token that ends a document. Tokens 0..255 are the bytes.
inline constexpr int32_t kByteEndToken = 256;

/// Number of tokens of the byte tokenizer. A model's vocabulary may be padded beyond it.
inline constexpr int32_t kByteVocabSize = 257;

/// The bytes of tokens. Others have none.
inline std::string bytesOf(std::span<const int32_t> tokens) {
  std::string bytes;
  for (int32_t token : tokens)
    if (token < kByteEndToken)
      bytes += static_cast<char>(token);
  return bytes;
}

} // namespace shardc::data
