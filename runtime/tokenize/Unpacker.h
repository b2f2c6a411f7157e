// Decompresses gzip and zstd streams in pieces, in memory that does not depend on the stream's
// size.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::tokenize {

class Unpacker {
public:
  virtual ~Unpacker() = default;

  /// Removes bytes from the beginning of `packed` and appends their decompressed form, at most
  /// kOutputBytes, to `out`. Must be called until `packed` is empty and a call appends nothing.
  /// InvalidInput, without the file's name, if the bytes are not such a stream.
  virtual Status unpack(std::string_view &packed, std::string &out) = 0;
  /// Whether the bytes so far end at the end of a stream. A file may contain several streams.
  virtual bool isComplete() const = 0;
  /// Returns `gzip` or `zstd`.
  virtual std::string_view format() const = 0;

  static constexpr size_t kOutputBytes = size_t{1} << 20;
};

/// Creates a decompressor for a file, by the suffix of its name (.gz, .zst) or otherwise by its
/// first bytes; null if the file is not compressed. Unavailable if this program was built without
/// the library.
Result<std::unique_ptr<Unpacker>> makeUnpacker(std::string_view path, std::string_view head);

} // namespace shardc::tokenize
