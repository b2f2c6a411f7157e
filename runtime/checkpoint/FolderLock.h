// Locks a folder of checkpoints, or a folder that is being created. Only one run or command may
// hold the lock, since two of them would remove each other's unfinished work. The system releases
// the lock when its holder ends for any reason.
#pragma once

#include <string>

#include "runtime/base/Descriptor.h"
#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// A hidden file in the locked folder, with the holder's process and host. A file that a killed
/// holder left is reused.
inline constexpr const char *kLockFile = ".shardc_lock";

/// Move-only; the destructor releases the lock.
class FolderLock {
public:
  /// Locks a folder, and creates it if it does not exist. Does not wait. A new folder that stays
  /// empty is removed with the lock. Io if the folder cannot be created or written to. Unavailable,
  /// with the holder's name, if it is locked. If the file system does not support locks, ok without
  /// a lock, and `emit` receives a warning.
  static Result<FolderLock> take(const std::string &folder, const ReportSink &emit);
  /// Like take(), for a folder that is created by one rename and must not exist before. The lock is
  /// a hidden file next to it, `.NAME.shardc_lock`.
  static Result<FolderLock> takeBeside(const std::string &folder, const ReportSink &emit);
  FolderLock() = default;
  FolderLock(FolderLock &&) = default;
  FolderLock &operator=(FolderLock &&other) noexcept;
  ~FolderLock() { release(); }

  bool isHeld() const { return file_.isOpen(); }

private:
  /// Locks the file `name` in `parent`. `what` names the locked object in the message to another
  /// process.
  static Result<FolderLock> takeFile(const std::string &parent, const std::string &name,
                                     const std::string &what, const ReportSink &emit);
  void release();

  Descriptor file_;
  bool isFolderNew_ = false;
  std::string path_;
};

} // namespace shardc::checkpoint
