// Files that stay open for a whole run, and files that appear complete or not at all. Files are
// read with pread, not mapped: if a file shrinks or a disk fails while training runs, the result is
// a Status with the file's name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc::data {

/// A regular file opened for reading, which remembers its size at that time. Move-only.
class DataFile {
public:
  /// Opens `path`. Fails with NotFound, Io, or InvalidInput if it is not a regular file.
  static Result<DataFile> open(const std::string &path);
  DataFile() = default;

  const std::string &path() const { return path_; }
  /// Size in bytes when the file was opened.
  uint64_t size() const { return size_; }

  /// Fills `out` with the bytes at `offset`. Thread-safe; allocates nothing unless it fails.
  /// InvalidInput if the file has become shorter since it was opened.
  Status readAt(uint64_t offset, std::span<uint8_t> out) const;

private:
  Descriptor file_;
  uint64_t size_ = 0;
  std::string path_;
};

/// Fills `out` with the bytes at `offset` of a file that had `size` bytes when it was first
/// inspected. Opens and closes the file, for corpora of more files than may stay open. Allocates
/// nothing unless it fails.
Status readFileAt(const std::string &path, uint64_t size, uint64_t offset, std::span<uint8_t> out);

/// A file that is written in pieces under a temporary name. Without commit() it is deleted.
/// Move-only.
class StagedFile {
public:
  static Result<StagedFile> create(const std::string &path);
  StagedFile() = default;
  StagedFile(StagedFile &&other) noexcept;
  StagedFile &operator=(StagedFile &&other) noexcept;
  ~StagedFile();

  /// Appends the bytes. Buffered, so that small pieces are cheap.
  Status append(std::string_view bytes);
  /// Writes the buffer and syncs the file. Afterwards only commit() may be called.
  Status sync();
  /// Renames the synced file to its final name and syncs the folder.
  Status commit();

  const std::string &path() const { return path_; }

private:
  Status flush();
  void discard();

  Descriptor file_;
  std::string path_;
  std::string temporary_;
  std::string buffer_;
};

/// Returns a Status for the error in errno: "cannot <what> '<path>': <reason>".
Status systemError(const char *what, const std::string &path);

} // namespace shardc::data
