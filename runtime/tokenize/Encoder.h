// Encoders convert texts to tokens. Each thread has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::tokenize {

/// Tokens of several texts, concatenated.
struct Encoding {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> lengths; ///< number of tokens of each text
};

/// Properties of a tokenizer, known after its library has read it.
struct TokenizerFacts {
  std::string library; ///< for example `tokenizers 0.23.3`
  int64_t vocabSize = 0;
  std::string endToken;         ///< empty if there is none
  std::optional<int32_t> endId; ///< of endToken
};

class Encoder {
public:
  virtual ~Encoder() = default;
  /// Replaces `out` by the tokens of the texts, which must be UTF-8. All tokens are in the
  /// vocabulary.
  virtual Status encode(std::span<const std::string> texts, Encoding &out) = 0;
  /// Makes a running encode() fail soon. Another thread may call it.
  virtual void cancel() {}
};

/// An opened tokenizer, with an encoder for each thread.
struct Encoders {
  TokenizerFacts facts;
  std::vector<std::unique_ptr<Encoder>> each;
};

} // namespace shardc::tokenize
