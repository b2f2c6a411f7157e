// Cuts the lines of all inputs into batches, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/tokenize/LineStream.h"

namespace shardc::tokenize {

/// A place between two lines of the inputs.
struct Position {
  size_t file = 0;  ///< index of the input
  int64_t line = 0; ///< lines of it that are before this place
  bool operator==(const Position &) const = default;
};

/// An input that was read to its end.
struct FinishedInput {
  size_t file = 0;
  int64_t lines = 0;
  std::string sha256;
  bool operator==(const FinishedInput &) const = default;
};

/// Lines of one input that follow each other.
struct Batch {
  size_t file = 0;
  int64_t firstLine = 0;                 ///< of the input, from 1
  std::string text;                      ///< all lines, one after the other
  std::vector<size_t> ends;              ///< of each line in `text`
  Position next;                         ///< after the batch
  std::optional<FinishedInput> finished; ///< the batch ends with its input
  uint64_t bytesRead = 0;                ///< of all inputs, before they are unpacked, up to here
};

struct ReaderOptions {
  uint64_t lineBytesMax = uint64_t{1} << 30;
  size_t batchBytes = size_t{1} << 20;
  size_t batchLines = 4096;
};

class BatchReader {
public:
  /// Begins at `start`: lines before it are read, since they belong to their file's digest, but not
  /// given.
  BatchReader(std::vector<std::string> paths, const ReaderOptions &options, const Position &start)
      : paths_(std::move(paths)), options_(options), position_(start), skipped_(start.line) {}

  /// The next batch, which may have no lines if its input ends; false after the last one.
  Result<bool> next(Batch &batch);

private:
  Status open();

  std::vector<std::string> paths_;
  ReaderOptions options_;
  Position position_;
  int64_t skipped_;          ///< lines of the first file to read over
  uint64_t bytesBefore_ = 0; ///< bytes of the inputs before the open one that were read
  std::optional<LineStream> stream_;
};

} // namespace shardc::tokenize
