// Writes Megatron indexed datasets, byte for byte as Megatron-Core's builder does. The .bin file is
// streamed; memory holds four bytes per sequence and eight per document.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/data/DataFile.h"
#include "runtime/data/IndexFile.h"

namespace shardc::data {

/// The error `data-refused` if the prefix of an indexed dataset gives its files no name.
Status checkPrefix(const std::string &prefix);

class IndexedBuilder {
public:
  /// Begins PREFIX.bin; the folder must exist. Float types are refused.
  static Result<IndexedBuilder> create(const std::string &prefix, TokenType type);

  /// Appends tokens to the current sequence; InvalidInput if one does not fit the
  /// type.
  Status addTokens(std::span<const int32_t> tokens);

  /// Ends the sequence; one without tokens is an empty sequence.
  Status endSequence();

  /// Ends the document after the sequences since the last document end; there may be none.
  Status endDocument();

  /// Renames both files to their final names. Between the removal of an old index and the rename of
  /// the new one there is no dataset with that prefix; a mixed pair never exists.
  Status finalize();

  int64_t numSequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t numDocuments() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t numTokens() const { return numTokens_; }

private:
  Status writeIndex(StagedFile &idx) const;

  std::string prefix_;
  TokenType type_ = TokenType::Int32;
  StagedFile bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  int64_t openTokens_ = 0;
  int64_t numTokens_ = 0;
};

} // namespace shardc::data
