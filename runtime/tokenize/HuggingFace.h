// Tokenizers of Hugging Face, by PyPI's package `tokenizers` in processes of Python, to which
// encode_texts.py says how they are spoken with.
#pragma once

#include "runtime/tokenize/Encoder.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {

struct HuggingFaceOptions {
  std::string python = "python3"; ///< looked up in PATH unless it has a slash
  std::string endToken;           ///< that the user names; empty for the one of the files
  int64_t processes = 1;
  int64_t threads = 1; ///< of each process
};

/// Starts the processes and waits until each has read the tokenizer. Unavailable, with what to
/// install, without Python or without the package; InvalidInput for a tokenizer that the library
/// refuses, or whose ids are not 0 to n - 1.
Result<Encoders> openHuggingFace(const TokenizerFiles &files, const HuggingFaceOptions &options);

/// Reads the payload of an answer 'T' for `texts` texts and a vocabulary of `vocabSize` tokens.
Status parseTokens(std::string_view payload, size_t texts, int64_t vocabSize, Encoding &out);

} // namespace shardc::tokenize
