// A group of NCCL calls that is closed on every exit: an open group would hold back all later calls
// of the thread until another group ends.
#pragma once

#include <nccl.h>

namespace shardc::cuda {

/// One group of calls of this thread. Groups nest, and only the outermost end() starts the work.
class GroupCall {
public:
  GroupCall() = default;
  GroupCall(const GroupCall &) = delete;
  GroupCall &operator=(const GroupCall &) = delete;
  ~GroupCall() {
    if (isOpen_)
      static_cast<void>(ncclGroupEnd()); // the original error is already being returned
  }

  /// Opens the group. If it fails, nothing is open.
  ncclResult_t begin() {
    ncclResult_t result = ncclGroupStart();
    isOpen_ = result == ncclSuccess;
    return result;
  }
  /// Closes the group and starts its calls.
  ncclResult_t end() {
    isOpen_ = false;
    return ncclGroupEnd();
  }

private:
  bool isOpen_ = false;
};

} // namespace shardc::cuda
