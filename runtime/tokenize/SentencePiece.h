// Tokenizers of SentencePiece, run by its library.
#pragma once

#include "runtime/tokenize/Encoder.h"
#include "runtime/tokenize/TokenizerFiles.h"

namespace shardc::tokenize {

/// Reads the model and creates `count` encoders. `endToken`: the end token that the user specifies;
/// empty for the one of the files, or otherwise of the model. Unavailable if this program was built
/// without the library; InvalidInput if the model or the end token is wrong, or if
/// tokenizer_config.json adds tokens that the model does not have.
Result<Encoders> openSentencePiece(const TokenizerFiles &files, const std::string &endToken,
                                   int64_t count);

} // namespace shardc::tokenize
