// Complete parts of the output, in a folder next to it, so that a run that was killed can continue.
// A shard is a file of tokens, sequence lengths and document lengths, and a JSON record that is
// written last and states how far the inputs have been read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/data/DataFile.h"
#include "runtime/data/IndexedBuilder.h"
#include "runtime/tokenize/BatchReader.h"

namespace shardc::tokenize {

/// Counts of a run.
struct Counts {
  int64_t tokens = 0, sequences = 0, documents = 0, emptyDocuments = 0;
  int64_t textBytes = 0; ///< size of the texts in UTF-8
  void add(const Counts &other);
  bool operator==(const Counts &) const = default;
};

/// Tokens of the documents of a batch.
struct Documents {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> lengths;   ///< number of tokens of each sequence
  std::vector<uint32_t> sequences; ///< number of sequences of each document
  Counts counts;
};

/// The record of a complete shard.
struct ShardRecord {
  Counts counts; ///< of this shard
  Position next; ///< where the next shard begins
  std::vector<FinishedInput> finished;
  uint32_t crc = 0; ///< CRC-32 of the shard's file
};

class ShardFolder {
public:
  /// Opens or creates `folder` for a run that the JSON text `job` identifies. Locks it for this
  /// process, and removes incomplete files of a killed run. InvalidInput, with what to delete, if
  /// it contains shards of another job or damaged ones; Unavailable if another process uses it.
  static Result<ShardFolder> open(const std::string &folder, const std::string &job,
                                  data::TokenType type, size_t inputs);
  ShardFolder() = default;
  ShardFolder(ShardFolder &&other) noexcept;
  ShardFolder &operator=(ShardFolder &&other) noexcept;
  /// Unlocks the folder, and removes it if it has no complete shard.
  ~ShardFolder();

  /// The position in the inputs after the last complete shard.
  Position next() const { return records_.empty() ? Position{} : records_.back().next; }
  const std::vector<ShardRecord> &records() const { return records_; }

  /// Appends documents to the open shard.
  Status add(const Documents &documents, const std::optional<FinishedInput> &finished);
  const Counts &openCounts() const { return open_.counts; }
  /// Completes the open shard. Its file and record are on disk when this returns.
  Status close(const Position &next);

  /// Appends all shards to `builder`, in order.
  Status copyTo(data::IndexedBuilder &builder) const;
  /// Deletes all shards and the folder.
  Status remove();

private:
  std::string pathOf(size_t shard, const char *suffix) const;
  Status lock();
  Status checkJob(const std::string &job) const;
  Status readRecords(size_t inputs);
  Status removeFiles(size_t firstShard) const;
  Status copyShard(size_t shard, data::IndexedBuilder &builder) const;
  Status append(std::string_view bytes);

  std::string folder_;
  data::TokenType type_ = data::TokenType::Int32;
  Descriptor lock_;
  std::vector<ShardRecord> records_;
  ShardRecord open_;
  std::optional<data::StagedFile> file_;
  std::vector<uint32_t> lengths_, sequences_; ///< of the open shard
};

} // namespace shardc::tokenize
