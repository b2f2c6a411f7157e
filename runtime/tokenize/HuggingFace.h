// Tokenizers of Hugging Face, run by the PyPI package `tokenizers` in Python processes.
// encode_texts.py describes the protocol.
#pragma once

#include "runtime/tokenize/Encoder.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {

struct HuggingFaceOptions {
  std::string python = "python3"; ///< looked up in PATH unless it has a slash
  std::string endToken;           ///< from the user; empty: the one in the files
  int64_t processes = 1;
};

/// Starts the processes and waits until each has read the tokenizer. Unavailable, with what to
/// install, if Python or the package is missing; InvalidInput if the library refuses the tokenizer,
/// or if its ids are not 0 to n - 1.
Result<Encoders> openHuggingFace(const TokenizerFiles &files, const HuggingFaceOptions &options);

/// Parses the payload of an answer 'T' for `texts` texts and a vocabulary of `vocabSize` tokens.
Status parseTokens(std::string_view payload, size_t texts, int64_t vocabSize, Encoding &out);

} // namespace shardc::tokenize
