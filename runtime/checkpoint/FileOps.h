// What a save does to the file system: every write, sync, rename and removal of this folder goes
// through here, so that tests can make the n-th of them fail or kill the process at it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// A file being written: buffered, synced before it counts as complete. Move-only.
class OutputFile {
public:
  /// Creates or empties the file.
  static Result<OutputFile> create(const std::string &path);
  OutputFile(OutputFile &&other) noexcept;
  OutputFile &operator=(OutputFile &&) = delete;
  ~OutputFile();

  Status write(const void *data, size_t size);
  /// Flushes, syncs to the disk and closes.
  Status close();

private:
  OutputFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  Status flush();
  Status writeThrough(const char *data, size_t size);

  int fd_ = -1;
  std::string path_, buffer_;
};

/// Writes a whole file under a temporary name, syncs it and renames it; the folder is not synced.
Status replaceFile(const std::string &path, std::string_view contents);
Status syncFolder(const std::string &path);
Status makeFolder(const std::string &path);
/// Makes a folder and those above it where they are missing.
Status makeFolders(const std::string &path);
Status renamePath(const std::string &from, const std::string &to);
/// Swaps two existing folders in one step; Unavailable where the file system cannot.
Status exchangePaths(const std::string &a, const std::string &b);
/// Removes a file or a folder with all that is in it; ok if it does not exist.
Status removeTree(const std::string &path);

/// For tests: what happens at the `operation`-th file operation from now, counted from 0.
struct FileFault {
  enum class Kind : uint8_t { None, DiskFull, Denied, Crash };
  Kind kind = Kind::None;
  int64_t operation = 0;
};
void setFileFault(FileFault fault);
/// Operations since the last setFileFault.
int64_t fileOperationsDone();

} // namespace shardc::checkpoint
