// Divides the lines of all inputs into batches, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/data/Jsonl.h"
#include "runtime/tokenize/LineStream.h"

namespace shardc::tokenize {

/// A position between two lines of the inputs.
struct Position {
  size_t file = 0;  ///< index of the input
  int64_t line = 0; ///< number of its lines before this position
  bool operator==(const Position &) const = default;
};

/// An input that was read completely.
struct FinishedInput {
  size_t file = 0;
  int64_t lines = 0;
  std::string sha256;
  bool operator==(const FinishedInput &) const = default;
};

/// Consecutive lines of one input.
struct Batch {
  size_t file = 0;
  int64_t firstLine = 0;                 ///< number in the input, from 1
  std::string text;                      ///< all lines, concatenated
  std::vector<size_t> ends;              ///< end of each line in `text`
  Position next;                         ///< position after the batch
  std::optional<FinishedInput> finished; ///< if the batch ends with its input
  uint64_t bytesRead = 0; ///< bytes read so far from all inputs, before decompression
};

struct ReaderOptions {
  uint64_t lineBytesMax = data::kLineBytesMax;
  FileForm form = FileForm::Lines;
  size_t batchBytes = size_t{1} << 20;
  size_t batchLines = 4096;
};

class BatchReader {
public:
  /// Begins at `start`. Lines before it are read for the digest of their file, but not returned.
  BatchReader(std::vector<std::string> paths, const ReaderOptions &options, const Position &start)
      : paths_(std::move(paths)), options_(options), position_(start), skipped_(start.line) {}

  /// Reads the next batch, which may have no lines if its input ends. Returns false after the last
  /// batch.
  Result<bool> next(Batch &batch);

private:
  Status open();

  std::vector<std::string> paths_;
  ReaderOptions options_;
  Position position_;
  int64_t skipped_;          ///< lines of the first file to skip
  uint64_t bytesBefore_ = 0; ///< bytes read from the inputs before the open one
  std::optional<LineStream> stream_;
};

} // namespace shardc::tokenize
