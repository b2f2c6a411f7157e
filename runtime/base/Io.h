// Files: whole reads with a size limit, memory maps, and writes that are complete or absent
// (temporary name, fsync, rename, fsync of the folder).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc {

/// The status code of a system error number: NotFound, Exhausted if a disk, a quota or a table of
/// open files is full, otherwise Io.
StatusCode kindOfError(int error);

/// An error with text "cannot <what> '<path>': <reason>", for an error number of the system.
Status systemError(const char *what, const std::string &path, int error);

/// A word for a file that is not regular, by its mode.
const char *kindOfFile(unsigned mode);

/// Reads a whole regular file. InvalidInput for a pipe, device or folder, for files of /proc and
/// the like, and for more than `bytesMax` bytes; NotFound or Io otherwise. Never blocks, unless the
/// path is in /dev/fd and names a descriptor with which this program was started.
Result<std::string> readFile(const std::string &path, uint64_t bytesMax = uint64_t{1} << 30);
/// Like readFile, for a path that a file names: no descriptor of this program.
Result<std::string> readRegular(const std::string &path, uint64_t bytesMax);

/// Opens a regular file for reading. Fails like readFile, before the file is opened.
Result<Descriptor> openRegular(const std::string &path);

/// InvalidInput if the file is in /proc, /sys or another file system that shows the system's state.
Status refuseSystemFile(int fd, const std::string &path);
/// Reads a file of /proc or /sys that the program itself needs.
Result<std::string> readSystemFile(const std::string &path);

/// Reads an open descriptor of this process, which may be a pipe. A file is read from its
/// beginning.
Result<std::string> readDescriptor(int fd, uint64_t bytesMax = uint64_t{1} << 32);

/// Reads an open descriptor from its position to its end; `path` is for messages.
Result<std::string> readOpened(int fd, const std::string &path, uint64_t bytesMax);

/// Writes all bytes. False, with errno set, if the system refuses.
bool writeFully(int fd, std::string_view bytes);
/// The same, with a Status; `path` is for the message.
Status writeAll(int fd, std::string_view contents, const std::string &path);

/// A random name beside `path`, for the file that will be renamed to it.
std::string temporaryOf(const std::string &path);
/// Whether temporaryOf() makes such a name for a file `of`, or an earlier version did.
bool isTemporaryOf(std::string_view name, std::string_view of);
/// Creates an empty file for writing, and never writes through a link of this name. Returns the
/// descriptor, or -1 with errno set.
int createNew(const std::string &path, unsigned mode);

/// Replaces `path`, or the file to which it links, by `contents` atomically: a crash leaves either
/// the old or the new file. The mode of an existing file is kept. If the path is not a regular
/// file, such as a pipe or /dev/null, writes to it.
Status writeFileAtomic(const std::string &path, std::string_view contents);
/// The same for a name that the user did not choose, so that a link or a pipe itself is replaced.
Status replaceFile(const std::string &path, std::string_view contents);

/// Ok if writeFileAtomic could write to `path` now. Leaves no file there.
Status checkWritable(const std::string &path);

/// A read-only memory map of a whole file. Move-only; unmaps when destroyed.
class MappedFile {
public:
  /// Maps a regular file. An empty file has no bytes and no map.
  static Result<MappedFile> open(const std::string &path);
  /// Maps the regular file of an open descriptor. `path` is for messages.
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
