// File operations of a save: every write, sync, rename and removal in its folder. Observers see
// each of them: one may end the save early, another injects failures in tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// Lets something end a save soon. A handler of signals may call both of the first two.
class Interruption {
public:
  void request() { isRequested_ = true; }
  /// Whether files are being removed, or a save was asked to end and removes what it has written.
  /// The process must not be ended then.
  bool isClearingUp() const { return endings_ > 0; }
  /// Aborted once it was requested. Asked before each item that a save writes; a commit asks no
  /// more.
  Status check();

private:
  friend class Clearing;
  std::atomic<bool> isRequested_{false};
  std::atomic<int> endings_{0}; ///< of saves that were asked to end, and of current removals
  static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
};

/// Injects failures of file operations in tests. Called by any thread.
class FileFaults {
public:
  virtual ~FileFaults() = default;
  /// Before each operation: the number of the error with which it fails, or 0.
  virtual int beforeOperation() = 0;
};

/// Observers of file operations; null: none. They must outlive the operations.
struct Observers {
  Interruption *interruption = nullptr;
  /// With some, writes go out in halves, so that files are also cut in the middle.
  FileFaults *faults = nullptr;

  Status checkInterrupted() const { return interruption ? interruption->check() : Status::ok(); }
};

/// A file being written, synced before it counts as complete. Bytes are gathered in blocks; full
/// ones are written by other threads, past the page cache where the file system allows that, while
/// the next is filled. So a write may fail on account of bytes given before. Move-only.
class OutputFile {
public:
  /// Creates or empties the file. Where it is known how many bytes will come, room for them is set
  /// aside before the first full block: writes that do not make the file longer run side by side.
  static Result<OutputFile> create(const std::string &path, const Observers &observers,
                                   uint64_t bytesExpected = 0);
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

  OutputFile(int fd, std::string path, const Observers &observers, uint64_t bytesExpected)
      : fd_(fd), path_(std::move(path)), observers_(observers), bytesExpected_(bytesExpected) {}
  /// Hands the full block to another thread, once there are not too many.
  Status passOn();
  /// Waits for the oldest block; its memory is filled next.
  Status waitForOne();
  Status writeRest();

  int fd_ = -1;
  std::string path_;
  Observers observers_;
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
Status replaceFile(const Observers &observers, const std::string &path, std::string_view contents);
/// The same for a file that is not meant to outlive this save: not synced.
Status writeScratch(const Observers &observers, const std::string &path, std::string_view contents);
Status syncFolder(const Observers &observers, const std::string &path);
Status makeFolder(const Observers &observers, const std::string &path);
/// Creates a folder and its missing parents. NotFound for a dangling link in the path, Io with the
/// system's reason.
Status makeFolders(const std::string &path);
Status renamePath(const Observers &observers, const std::string &from, const std::string &to);
/// Swaps two existing folders in one step; Unavailable where the file system cannot.
Status exchangePaths(const Observers &observers, const std::string &a, const std::string &b);
/// Removes a file or a folder with all that is in it; ok if it does not exist.
Status removeTree(const Observers &observers, const std::string &path);

} // namespace shardc::checkpoint
