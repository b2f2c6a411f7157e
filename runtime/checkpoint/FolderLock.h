// The lock of a folder of checkpoints, or of a folder being created, which one run or command holds
// at a time: two of them would remove each other's unfinished work. The system releases the lock
// when its holder ends, in whatever way.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// Hidden in the folder while the lock is held, with the holder's process and host in it. One that
/// a killed holder left is taken over.
inline constexpr const char *kLockFile = ".shardc_lock";

class FolderLock {
public:
  /// Locks a folder without waiting, and creates it if it does not exist; an unused new folder is
  /// removed with the lock. Io if the folder cannot be created or written to. Unavailable, with the
  /// holder named, if it is locked. Ok without a lock if the file system has none; `emit` then
  /// receives a warning.
  static Result<FolderLock> take(const std::string &folder, const ReportSink &emit);
  /// The same for a folder that is created by one rename and must be empty until then: the lock is
  /// a hidden file beside it, `.NAME.shardc_lock`.
  static Result<FolderLock> takeBeside(const std::string &folder, const ReportSink &emit);
  FolderLock() = default;
  FolderLock(FolderLock &&other) noexcept;
  FolderLock &operator=(FolderLock &&other) noexcept;
  ~FolderLock() { release(); }

  bool isHeld() const { return fd_ >= 0; }

private:
  static Result<FolderLock> takeFile(const std::string &parent, const std::string &name,
                                     const std::string &what, const ReportSink &emit);
  void release();

  int fd_ = -1;
  bool isFolderNew_ = false;
  std::string path_;
};

} // namespace shardc::checkpoint
