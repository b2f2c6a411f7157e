// Reads the lines of a file, which may be compressed, and computes the file's SHA-256.
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
  /// Opens a file. Lines of more than `lineBytesMax` bytes are refused. Errors name the file.
  static Result<LineStream> open(const std::string &path, uint64_t lineBytesMax);

  /// Reads the next line without its line end; returns false after the last one. InvalidInput, with
  /// the file's name, if a compressed stream is damaged or ends early.
  Result<bool> next(std::string &line);

  const std::string &path() const { return file_.path(); }
  /// Number of lines that next() has returned.
  int64_t lineNumber() const { return lineNumber_; }
  /// Number of bytes of the file that have been read, before decompression.
  uint64_t position() const { return position_; }
  /// SHA-256 of the whole file. Valid after its last line.
  std::string digest() const { return digest_.hex(); }

private:
  /// Appends to text_. Returns false at the end of the file.
  Result<bool> fill();
  Status readPacked();

  data::DataFile file_;
  std::unique_ptr<Unpacker> unpacker_;
  uint64_t lineBytesMax_ = 0, position_ = 0;
  int64_t lineNumber_ = 0;
  Sha256 digest_;
  std::string packed_; ///< as read; decompressed up to taken_
  size_t taken_ = 0;
  std::string text_; ///< returned up to given_
  size_t given_ = 0;
};

} // namespace shardc::tokenize
