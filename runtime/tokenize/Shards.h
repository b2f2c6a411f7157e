// Parts of the output that are complete, in a folder beside it, so that a run that is ended by
// force continues. A shard is a file of tokens, lengths of sequences and of documents, and a record
// in JSON that is written last: it says how far the inputs have been read.
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

/// What a run counts.
struct Counts {
  int64_t tokens = 0, sequences = 0, documents = 0, emptyDocuments = 0;
  int64_t textBytes = 0; ///< of the texts, in UTF-8
  void add(const Counts &other);
  bool operator==(const Counts &) const = default;
};

/// Tokens of a batch's documents.
struct Documents {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> lengths;   ///< tokens of each sequence
  std::vector<uint32_t> sequences; ///< of each document
  Counts counts;
};

/// The record of a complete shard.
struct ShardRecord {
  Counts counts; ///< of this shard
  Position next; ///< where the next one begins
  std::vector<FinishedInput> finished;
  uint32_t crc = 0; ///< CRC-32 of the shard's file
};

class ShardFolder {
public:
  /// Opens or makes `folder` for a run whose identity is `job`, a text of JSON. Locks it for this
  /// process, and removes what an ended run left incomplete. InvalidInput, with what to delete, if
  /// it holds shards of another job or damaged ones; Unavailable if another process uses it.
  static Result<ShardFolder> open(const std::string &folder, const std::string &job,
                                  data::TokenType type, size_t inputs);
  ShardFolder() = default;
  ShardFolder(ShardFolder &&other) noexcept;
  ShardFolder &operator=(ShardFolder &&other) noexcept;
  /// Unlocks; a folder without a complete shard is removed.
  ~ShardFolder();

  /// The place after the last complete shard.
  Position next() const { return records_.empty() ? Position{} : records_.back().next; }
  const std::vector<ShardRecord> &records() const { return records_; }

  /// Appends to the open shard.
  Status add(const Documents &documents, const std::optional<FinishedInput> &finished);
  const Counts &openCounts() const { return open_.counts; }
  /// Completes the open shard: file and record are on disk when this returns.
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
  int lock_ = -1;
  std::vector<ShardRecord> records_;
  ShardRecord open_;
  std::optional<data::StagedFile> file_;
  std::vector<uint32_t> lengths_, sequences_; ///< of the open shard
};

} // namespace shardc::tokenize
