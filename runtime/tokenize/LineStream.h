// The lines of a file, which may be packed, and the file's SHA-256 on the way.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/Sha256.h"
#include "runtime/base/Status.h"
#include "runtime/data/DataFile.h"
#include "runtime/tokenize/Unpacker.h"

namespace shardc::tokenize {

class LineStream {
public:
  /// Opens a file; lines of more than `lineBytesMax` bytes are refused. Errors name the file.
  static Result<LineStream> open(const std::string &path, uint64_t lineBytesMax);

  /// The next line without its end, or false after the last one. A stream that is damaged, or ends
  /// early, is InvalidInput with the file's name.
  Result<bool> next(std::string &line);

  const std::string &path() const { return file_.path(); }
  /// Lines that next() has given.
  int64_t lineNumber() const { return lineNumber_; }
  /// Bytes of the file that have been read, before they are unpacked.
  uint64_t position() const { return position_; }
  /// SHA-256 of the whole file, after its last line.
  std::string digest() const { return digest_.hex(); }

private:
  /// Appends to text_; false at the end of the file.
  Result<bool> fill();
  Status readPacked();

  data::DataFile file_;
  std::unique_ptr<Unpacker> unpacker_;
  uint64_t lineBytesMax_ = 0, position_ = 0;
  int64_t lineNumber_ = 0;
  Sha256 digest_;
  std::string packed_; ///< as read; its head up to taken_ was unpacked
  size_t taken_ = 0;
  std::string text_; ///< its head up to given_ was given out
  size_t given_ = 0;
};

} // namespace shardc::tokenize
