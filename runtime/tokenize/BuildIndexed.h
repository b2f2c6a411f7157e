// Builds a Megatron indexed dataset from text or JSON lines, for `shardc data build`.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/data/Jsonl.h"

namespace shardc::tokenize {

enum class InputFormat : uint8_t {
  Auto,  ///< by suffix: .jsonl, .json and .ndjson are JSON lines, all others text
  Text,  ///< each file is a document
  Jsonl, ///< also in one array
};

struct BuildOptions {
  InputFormat format = InputFormat::Auto;
  /// The key of the text in a JSON line.
  std::string jsonKey = "text";
  /// Whether each document that is not empty ends with the document-end token. Megatron's
  /// --append-eod, which is off by default there.
  bool appendEod = true;
  uint64_t lineBytesMax = data::kLineBytesMax;
};

/// What a build has read and written.
struct BuildSummary {
  int64_t files = 0;
  int64_t documents = 0;
  int64_t emptyDocuments = 0;
  int64_t tokens = 0;
};

/// Writes `outPrefix`.idx and .bin with the byte tokenizer, as a stream. The inputs are those of
/// expandInputs. On failure neither file is changed. A document without text has no sequence, as
/// upstream.
Result<BuildSummary> buildIndexed(std::span<const std::string> inputs, const std::string &outPrefix,
                                  const BuildOptions &options);

} // namespace shardc::tokenize
