// Files: whole reads with a size limit, memory maps, and writes that are complete or absent
// (temporary name, fsync, rename, fsync of the folder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc {

/// The status code of a system error number: NotFound, Exhausted if a disk or a quota is full,
/// otherwise Io.
StatusCode kindOfError(int error);

/// "cannot <what> '<path>': <reason>", for an error number of the system.
Status systemError(const char *what, const std::string &path, int error);

/// Reads a whole regular file. InvalidInput for a pipe, device or folder, and beyond `bytesMax`;
/// NotFound or Io otherwise. Never blocks, unless the path is one of /dev/fd: a descriptor that
/// this program was started with.
Result<std::string> readFile(const std::string &path, uint64_t bytesMax = uint64_t{1} << 32);

/// Reads from an open descriptor of this process, pipes included; a file from its beginning.
Result<std::string> readDescriptor(int fd, uint64_t bytesMax = uint64_t{1} << 32);

/// Reads an open descriptor from its position to its end; `path` is for messages.
Result<std::string> readOpened(int fd, const std::string &path, uint64_t bytesMax);

/// Replaces `path`, or the file that it links to, by `contents` atomically: a crash leaves the old
/// file or the new one. An existing file's mode stays. Writes into a path that is not a regular
/// file, such as a pipe or /dev/null.
Status writeFileAtomic(const std::string &path, std::string_view contents);

/// Whether writeFileAtomic could write to `path` now; leaves nothing there.
Status checkWritable(const std::string &path);

/// A read-only memory map of a whole file. Move-only; unmaps when destroyed.
class MappedFile {
public:
  static Result<MappedFile> open(const std::string &path);
  /// Maps the regular file of an open descriptor; `path` is for messages.
  static Result<MappedFile> ofOpened(int fd, const std::string &path);
  MappedFile() = default;
  MappedFile(MappedFile &&other) noexcept;
  MappedFile &operator=(MappedFile &&other) noexcept;
  ~MappedFile();

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string &path() const { return path_; }

private:
  const uint8_t *data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

} // namespace shardc
