// A group of NCCL calls that is closed on every exit: an open group would hold back all later calls
// of the thread until another group ends.
#pragma once

#include <nccl.h>

namespace shardc::cuda {

class GroupCall {
public:
  GroupCall() = default;
  GroupCall(const GroupCall &) = delete;
  GroupCall &operator=(const GroupCall &) = delete;
  ~GroupCall() {
    if (isOpen_)
      static_cast<void>(ncclGroupEnd()); // the original error is already being returned
  }

  ncclResult_t begin() {
    ncclResult_t result = ncclGroupStart();
    isOpen_ = result == ncclSuccess;
    return result;
  }
  ncclResult_t end() {
    isOpen_ = false;
    return ncclGroupEnd();
  }

private:
  bool isOpen_ = false;
};

} // namespace shardc::cuda
