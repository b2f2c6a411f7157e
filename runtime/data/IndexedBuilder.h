// Writes Megatron indexed datasets with exactly the bytes that Megatron-Core's builder writes. The
// .bin file is streamed; four bytes per sequence and eight per document stay in memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/data/DataFile.h"
#include "runtime/data/IndexFile.h"

namespace shardc::data {

/// Returns the error `data-refused` if a prefix would leave the files of the dataset without a
/// name.
Status checkPrefix(const std::string &prefix);

class IndexedBuilder {
public:
  /// Creates PREFIX.bin, whose folder must exist. Floating-point types are refused.
  static Result<IndexedBuilder> create(const std::string &prefix, TokenType type);

  /// Appends tokens to the current sequence. InvalidInput if a token does not fit the type.
  Status addTokens(std::span<const int32_t> tokens);

  /// Ends the sequence, which may be empty.
  Status endSequence();

  /// Ends the document. It consists of the sequences since the last document end, of which there
  /// may be none.
  Status endDocument();

  /// Renames both files to their final names. Between the removal of an old index and the rename of
  /// the new one no dataset with that prefix exists, so an old file is never paired with a new one.
  Status finalize();

  int64_t numSequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t numDocuments() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t numEmptyDocuments() const { return numEmptyDocuments_; }
  int64_t numTokens() const { return numTokens_; }

private:
  Status writeIndex(StagedFile &idx) const;

  std::string prefix_;
  TokenType type_ = TokenType::Int32;
  StagedFile bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  int64_t openTokens_ = 0;
  int64_t numTokens_ = 0, numEmptyDocuments_ = 0;
};

} // namespace shardc::data
