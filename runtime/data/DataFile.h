// Files that stay open for a whole run, and files that appear complete or not at all. Files are
// read with pread and not mapped: if a file shrinks or a disk fails while training runs, the result
// is a Status with the file's name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::data {

/// A regular file opened for reading, with the size that it had when it was opened. Move-only.
class DataFile {
public:
  /// Opens `path`; NotFound, Io or InvalidInput (not a regular file) otherwise.
  static Result<DataFile> open(const std::string &path);
  DataFile() = default;
  DataFile(DataFile &&other) noexcept;
  DataFile &operator=(DataFile &&other) noexcept;
  ~DataFile();

  const std::string &path() const { return path_; }
  /// Bytes at the time of opening.
  uint64_t size() const { return size_; }

  /// Fills `out` from `offset`. Safe from several threads at once; allocates nothing unless it
  /// fails. InvalidInput if the file ends earlier than it did when it was opened.
  Status readAt(uint64_t offset, std::span<uint8_t> out) const;

private:
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string path_;
};

/// Fills `out` from `offset` of a file that had `size` bytes when it was first looked at, opening
/// and closing it: for corpora of more files than may stay open. Allocates nothing unless it fails.
Status readFileAt(const std::string &path, uint64_t size, uint64_t offset, std::span<uint8_t> out);

/// A file that is written piece by piece under a temporary name. Without commit() nothing remains
/// of it. Move-only.
class StagedFile {
public:
  static Result<StagedFile> create(const std::string &path);
  StagedFile() = default;
  StagedFile(StagedFile &&other) noexcept;
  StagedFile &operator=(StagedFile &&other) noexcept;
  ~StagedFile();

  /// Appends; buffered, so that small pieces are cheap.
  Status append(std::string_view bytes);
  /// Writes the buffer and syncs; afterwards only commit() may be called.
  Status sync();
  /// Gives the synced file its name and syncs the folder.
  Status commit();

  const std::string &path() const { return path_; }

private:
  Status flush();
  void discard();

  int fd_ = -1;
  std::string path_;
  std::string temporary_;
  std::string buffer_;
};

/// A Status for the error in errno: "cannot <what> '<path>': <reason>".
Status systemError(const char *what, const std::string &path);

} // namespace shardc::data
