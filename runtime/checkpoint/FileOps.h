// File operations of a save: every write, sync, rename and removal in its folder. Each operation
// notifies observers: one may end the save early, another injects failures in tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// Requests an early end of a save. Signal handlers may call the first two functions.
class Interruption {
public:
  void request() { isRequested_ = true; }
  /// Whether files are being removed, including those of a save that was asked to end. The process
  /// must not be ended then.
  bool isClearingUp() const { return endings_ > 0; }
  /// Aborted if the end was requested. A save calls it before each item; a commit does not call it.
  Status check();

private:
  friend class Clearing;
  std::atomic<bool> isRequested_{false};
  std::atomic<int> endings_{0}; ///< number of interrupted saves and of removals in progress
  static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
};

/// Injects failures of file operations in tests. Any thread may call it.
class FileFaults {
public:
  virtual ~FileFaults() = default;
  /// Called before each operation. Returns an error number with which it must fail, or 0.
  virtual int beforeOperation() = 0;
};

/// Observers of file operations; null: none. They must outlive the operations.
struct Observers {
  Interruption *interruption = nullptr;
  /// If set, each write is executed in two halves, so that files may also be cut in the middle.
  FileFaults *faults = nullptr;

  Status checkInterrupted() const { return interruption ? interruption->check() : Status::ok(); }
};

/// A file that is synced before it counts as complete. Bytes are collected in blocks. Other threads
/// write full blocks while the next one is filled, bypassing the page cache if the file system
/// allows it. So a write may report an error of earlier bytes. Move-only.
class OutputFile {
public:
  /// Creates or empties the file. If the number of bytes is known in advance, the file is allocated
  /// before the first full block, since writes that do not extend a file can run concurrently.
  static Result<OutputFile> create(const std::string &path, const Observers &observers,
                                   uint64_t bytesExpected = 0);
  OutputFile(OutputFile &&) = default;
  OutputFile &operator=(OutputFile &&) = delete;
  ~OutputFile();

  Status write(const void *data, size_t size);
  /// Skips the sync, for a file that is only needed during this save.
  void leaveUnsynced() { isSynced_ = false; }
  /// Flushes, syncs to the disk and closes.
  Status close();

private:
  struct Free {
    void operator()(char *block) const { std::free(block); }
  };
  using Block = std::unique_ptr<char, Free>; ///< aligned for direct writes
  struct Pending {
    Block block;
    std::future<Status> written;
  };

  OutputFile(Descriptor file, std::string path, const Observers &observers, uint64_t bytesExpected)
      : file_(std::move(file)), path_(std::move(path)), observers_(observers),
        bytesExpected_(bytesExpected) {}
  /// Passes the full block to another thread, after waiting if too many blocks are in flight.
  Status passOn();
  /// Waits for the oldest block, whose memory is then filled again.
  Status waitForOne();
  /// Writes the remaining bytes, which do not fill a block. A direct write needs whole sectors, so
  /// the file is truncated afterwards.
  Status writeRest();

  Descriptor file_;
  std::string path_;
  Observers observers_;
  uint64_t bytesExpected_ = 0;
  uint64_t bytesPassedOn_ = 0;
  bool isSynced_ = true;
  bool isDirect_ = false;
  bool isCutNeeded_ = false; ///< the file may be longer than its content
  Block filling_;
  size_t filled_ = 0;
  std::deque<Pending> pending_; ///< oldest first
};

/// Lets `write` create a file of the temporary name that it is given, and renames it to `path`.
/// After a failure nothing is left of it.
Status putInPlace(const Observers &observers, const std::string &path,
                  const std::function<Status(const std::string &temporary)> &write);
/// Lets `fill` put files into a folder of a temporary name, syncs it and renames it to `out`, which
/// does not exist or is empty. After a failure nothing is left of it.
Status putFolder(const Observers &observers, const std::string &out,
                 const std::function<Status(const std::string &staging)> &fill);
/// Writes a whole file under a temporary name, syncs it and renames it. The folder is not synced.
Status replaceFile(const Observers &observers, const std::string &path, std::string_view contents);
/// Like replaceFile(), but without a sync, for a file that is only needed during this save.
Status writeScratch(const Observers &observers, const std::string &path, std::string_view contents);
/// fsync of a folder, after which its new names survive a crash.
Status syncFolder(const Observers &observers, const std::string &path);
/// Creates a folder, with its parents, unless it exists.
Status makeFolder(const Observers &observers, const std::string &path);
/// Creates a folder and its missing parents. NotFound for a dangling link in the path, Io with the
/// system's reason.
Status makeFolders(const std::string &path);
/// rename(2): replaces an existing file at `to`.
Status renamePath(const Observers &observers, const std::string &from, const std::string &to);
/// Exchanges two existing folders atomically. Unavailable if the file system does not support it.
Status exchangePaths(const Observers &observers, const std::string &a, const std::string &b);
/// Removes a file, or a folder with everything in it; ok if it does not exist.
Status removeTree(const Observers &observers, const std::string &path);

} // namespace shardc::checkpoint
