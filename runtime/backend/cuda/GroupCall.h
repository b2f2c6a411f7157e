// A group of NCCL calls. Whatever leaves between its begin and its end closes it: an open group
// would keep back every later call of the thread, until some other one's end.
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
      static_cast<void>(ncclGroupEnd()); // what was wrong is on its way already
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
