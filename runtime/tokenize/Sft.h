// Packs rows for fine-tuning from JSON lines, for `shardc data sft`.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "runtime/data/Jsonl.h"
#include "runtime/tokenize/PackRows.h"
#include "runtime/tokenize/RowProcess.h"

namespace shardc::tokenize {

struct SftOptions {
  std::string tokenizer; ///< a folder or a tokenizer.json
  RowSettings rows;
  data::PackingKind packing = data::PackingKind::None;
  uint32_t seed = 1234;
  std::string python = "python3";
  int64_t processes = 0; ///< processes that encode; 0: one for each core
  uint64_t lineBytesMax = data::kLineBytesMax;
};

/// A note on rows of all inputs, with the place of the first of them.
struct SftNote {
  std::string kind, text, place; ///< see RowNote; `place` is 'FILE:LINE'
  int64_t count = 0;
};

struct SftSummary {
  PackCounts counts;
  std::vector<SftNote> notes; ///< in the order in which they were found
  int64_t files = 0, vocabSize = 0;
  bool isMarked = false; ///< the template marks the generated text itself
};

/// Writes the packs `prefix` (see data::PackFiles) from lines of the inputs, in a random order that
/// the seed determines. The same inputs and options give the same bytes, whatever the number of
/// processes. `emit` is called with the number of rows after each batch. The processes that it
/// starts may end early, so the program must ignore SIGPIPE.
Result<SftSummary> makeSft(std::span<const std::string> inputs, const std::string &prefix,
                           const SftOptions &options, const std::function<void(int64_t)> &emit);

} // namespace shardc::tokenize
