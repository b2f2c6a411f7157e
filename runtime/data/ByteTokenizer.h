// The byte tokenizer: each byte of the text is a token, and one more token ends a document.
#pragma once

#include <cstdint>

namespace shardc::data {

/// The token that ends a document. Tokens 0..255 are the bytes.
inline constexpr int32_t kByteEndToken = 256;

/// Number of tokens of the byte tokenizer. A model's vocabulary may be padded beyond it.
inline constexpr int32_t kByteVocabSize = 257;

} // namespace shardc::data
