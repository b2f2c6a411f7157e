// The right to save in a folder of checkpoints, which one run or conversion has at a time: two of
// them would clear away each other's unfinished saves. The system takes the lock back when its
// holder ends, however that happens.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace shardc::checkpoint {

/// Hidden in the folder while the lock is held, with the holder's process and host in it. One that
/// a killed holder left is taken over.
inline constexpr const char *kLockFile = ".shardc_lock";

class FolderLock {
public:
  /// Locks a folder without waiting, making it where it is missing; one that was made for nothing
  /// is removed with the lock. Io if it cannot be made. Unavailable, with the holder named, if
  /// another has it. Ok without a lock where the file system has none: `note` says why.
  static Result<FolderLock> take(const std::string &folder);
  FolderLock() = default;
  FolderLock(FolderLock &&other) noexcept;
  FolderLock &operator=(FolderLock &&other) noexcept;
  ~FolderLock() { release(); }

  bool isHeld() const { return fd_ >= 0; }
  /// A warning for people where nothing could be locked; empty otherwise.
  const std::string &note() const { return note_; }

private:
  void release();

  int fd_ = -1;
  bool isFolderNew_ = false;
  std::string path_, note_;
};

} // namespace shardc::checkpoint
