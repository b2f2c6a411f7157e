// The files of a user's tokenizer: tokenizer.json of Hugging Face's tokenizers, or tokenizer.model
// of SentencePiece, and the files next to it that name special tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::tokenize {

enum class TokenizerKind : uint8_t { HuggingFace, SentencePiece };

struct TokenizerFiles {
  TokenizerKind kind = TokenizerKind::HuggingFace;
  std::string path;   ///< tokenizer.json or tokenizer.model
  std::string sha256; ///< SHA-256 of that file
  /// `eos_token` of tokenizer_config.json, or of special_tokens_map.json; empty if neither has one.
  std::string endToken;
  /// Largest id that tokenizer_config.json adds; -1 if it adds none.
  int64_t addedIdMax = -1;
};

/// Finds the tokenizer in a folder (tokenizer.json before tokenizer.model), or at the path of one
/// of these files, which may have any name before the suffix. NotFound or InvalidInput, with what
/// was searched for.
Result<TokenizerFiles> findTokenizer(const std::string &path);

/// Tokens that end a text: the tokenizer's, and those of generation_config.json and config.json in
/// the folder of a model, which may be empty.
std::vector<int32_t> endsOfTexts(const std::string &folder, std::optional<int32_t> ofTokenizer);

/// SHA-256 of a file.
Result<std::string> digestOf(const std::string &path);
/// Returns the bytes of a file, at most 1 GiB.
Result<std::string> readWhole(const std::string &path);

} // namespace shardc::tokenize
