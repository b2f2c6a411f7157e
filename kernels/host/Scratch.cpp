// Buffers begin at multiples of kAlign bytes. Taking more than the kernel has declared is a fault
// of the kernel.
#include "kernels/host/Scratch.h"

#include "runtime/base/Status.h"

namespace shardc::kernels::host {

Scratch::Scratch(const Call &call) {
  auto address = reinterpret_cast<uintptr_t>(call.workspace);
  size_t lost = (kAlign - address % kAlign) % kAlign;
  base_ = static_cast<std::byte *>(call.workspace) + lost;
  size_ = call.workspaceBytes > lost ? call.workspaceBytes - lost : 0;
}

void *Scratch::takeBytes(size_t bytes) {
  size_t begin = used_;
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  if (!base_)
    return nullptr;
  SHARDC_CHECK(used_ <= size_, "a kernel takes {} bytes of a workspace of {}", used_, size_);
  return base_ + begin;
}

} // namespace shardc::kernels::host
