// File operations of a save: every write, sync, rename and removal of this folder goes through
// here, so that tests can make the n-th of them fail or kill the process at it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// A file being written, synced before it counts as complete. Bytes are gathered in blocks; full
/// ones are written by other threads, past the page cache where the file system allows that, while
/// the next is filled. So a write may fail on account of bytes given before. Move-only.
class OutputFile {
public:
  /// Creates or empties the file. Where it is known how many bytes will come, room for them is set
  /// aside before the first full block: writes that do not make the file longer run side by side.
  static Result<OutputFile> create(const std::string &path, uint64_t bytesExpected = 0);
  OutputFile(OutputFile &&other) noexcept;
  OutputFile &operator=(OutputFile &&) = delete;
  ~OutputFile();

  Status write(const void *data, size_t size);
  /// Leaves the sync out, for a file that is not meant to outlive this save.
  void leaveUnsynced() { isSynced_ = false; }
  /// Flushes, syncs to the disk and closes.
  Status close();

private:
  struct Free {
    void operator()(char *block) const { std::free(block); }
  };
  using Block = std::unique_ptr<char, Free>; ///< aligned as direct writes need it
  struct Pending {
    Block block;
    std::future<Status> written;
  };

  OutputFile(int fd, std::string path, uint64_t bytesExpected)
      : fd_(fd), path_(std::move(path)), bytesExpected_(bytesExpected) {}
  /// Hands the full block to another thread, once there are not too many.
  Status passOn();
  /// Waits for the oldest block; its memory is filled next.
  Status waitForOne();
  Status writeRest();

  int fd_ = -1;
  std::string path_;
  uint64_t bytesExpected_ = 0;
  uint64_t bytesPassedOn_ = 0;
  bool isSynced_ = true;
  bool isDirect_ = false;
  bool isCutNeeded_ = false; ///< the file may be longer than what was written
  Block filling_;
  size_t filled_ = 0;
  std::deque<Pending> pending_; ///< from the oldest on
};

/// Writes a whole file under a temporary name, syncs it and renames it; the folder is not synced.
Status replaceFile(const std::string &path, std::string_view contents);
/// The same for a file that is not meant to outlive this save: not synced.
Status writeScratch(const std::string &path, std::string_view contents);
Status syncFolder(const std::string &path);
Status makeFolder(const std::string &path);
/// Makes a folder and those above it where they are missing; NotFound for a link on the way that
/// leads nowhere, Io with the system's reason.
Status makeFolders(const std::string &path);
Status renamePath(const std::string &from, const std::string &to);
/// Swaps two existing folders in one step; Unavailable where the file system cannot.
Status exchangePaths(const std::string &a, const std::string &b);
/// Removes a file or a folder with all that is in it; ok if it does not exist.
Status removeTree(const std::string &path);

/// Makes what is being saved end soon, by setting a flag: for handlers of signals.
void interruptSaves();
/// Whether something is being removed, or a save has learned that it is to end and removes what it
/// has written: no time to end the process. For handlers of signals.
bool isClearingUp();
/// Aborted once interruptSaves was called. Asked before each item that a save writes; a commit asks
/// no more.
Status checkInterrupted();

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
