// Reads the lines of a file, or the elements of a JSON array, and computes the file's SHA-256. The
// file may be compressed.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/Sha256.h"
#include "runtime/base/Status.h"
#include "runtime/data/DataFile.h"
#include "runtime/tokenize/Unpacker.h"

namespace shardc::tokenize {

/// What a file contains: lines of any text, or rows of JSON, either one a line or all in one array.
enum class FileForm : uint8_t { Lines, JsonRows };

class LineStream {
public:
  /// Opens a file. Lines of more than `lineBytesMax` bytes are refused. Errors name the file. With
  /// JsonRows, a byte order mark is skipped, and each element of an array counts as a line.
  static Result<LineStream> open(const std::string &path, uint64_t lineBytesMax,
                                 FileForm form = FileForm::Lines);

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
  Status beginRows();
  Result<bool> nextElement(std::string &element);
  /// Returns the next byte that is not a blank, without consuming it; 0 at the end of the file.
  Result<char> peek();

  data::DataFile file_;
  std::unique_ptr<Unpacker> unpacker_;
  uint64_t lineBytesMax_ = 0, position_ = 0;
  bool isArray_ = false;
  int64_t lineNumber_ = 0;
  Sha256 digest_;
  std::string packed_; ///< as read; decompressed up to taken_
  size_t taken_ = 0;
  std::string text_; ///< returned up to given_
  size_t given_ = 0;
};

} // namespace shardc::tokenize
