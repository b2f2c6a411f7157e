// Builds a Megatron indexed dataset from JSON lines with a tokenizer, for `shardc data tokenize`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/data/Jsonl.h"
#include "runtime/tokenize/Shards.h"

namespace shardc::tokenize {

struct TokenizeOptions {
  std::string tokenizer; ///< a folder, a tokenizer.json or a tokenizer.model
  std::string jsonKey = "text";
  std::string endToken; ///< specified by the user; empty: that of the tokenizer
  bool appendEod = true;
  std::string python = "python3";
  int64_t threads = 0;                     ///< 0: one for each core
  int64_t shardTokens = int64_t{64} << 20; ///< tokens after which a shard is complete
  uint64_t lineBytesMax = data::kLineBytesMax;
};

/// The progress of a run.
struct Progress {
  uint64_t bytesRead = 0, bytesTotal = 0; ///< of the inputs, before decompression
  Counts counts;                          ///< of all shards
  int64_t resumedTokens = 0;              ///< tokens in shards that an earlier run completed
  bool isMerging = false;
};

struct TokenizeSummary {
  Counts counts;
  int64_t files = 0;
  int64_t vocabSize = 0;
  std::string endToken; ///< empty if documents have no end token
  int64_t resumedTokens = 0;
};

/// Writes `prefix`.bin and .idx and the manifest `prefix`.json, from lines of the inputs in their
/// order (data::expandInputs; files may be compressed by gzip or zstd). Complete shards are in the
/// folder `prefix`.parts until the end, so that the same call continues a run that was killed and
/// writes the same bytes. On failure no file under a final name is changed. `emit` is called in
/// this thread after each batch. The processes that it starts may end early, so the program must
/// ignore SIGPIPE.
Result<TokenizeSummary> tokenize(std::span<const std::string> inputs, const std::string &prefix,
                                 const TokenizeOptions &options,
                                 const std::function<void(const Progress &)> &emit);

} // namespace shardc::tokenize
