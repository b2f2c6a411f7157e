// A list of token sequences with random access, from which samples are cut. Indexed datasets and
// text corpora are stores.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::data {

class TokenStore {
public:
  virtual ~TokenStore() = default;

  /// The name that the user gave it: a path prefix, a file or a folder.
  virtual const std::string &name() const = 0;

  /// Number of tokens of each sequence. Valid as long as the store exists.
  virtual std::span<const int32_t> sequenceLengths() const = 0;

  /// Copies out.size() tokens of `sequence`, beginning with its token `offset`. The range must lie
  /// within the sequence. Thread-safe; allocates nothing unless it fails. Tokens that do not fit an
  /// int32 are an error.
  virtual Status read(int64_t sequence, int64_t offset, std::span<int32_t> out) const = 0;
};

} // namespace shardc::data
