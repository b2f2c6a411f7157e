// Divides a call's workspace into buffers. A kernel describes its buffers once, in a struct whose
// constructor takes them from a Scratch. In counting mode the description gives workspaceBytes;
// with a call it gives the addresses, so the two cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

class Scratch {
public:
  /// Counts only; `take` returns null.
  Scratch() = default;
  /// Hands out the call's workspace.
  explicit Scratch(const Call &call);

  /// Room for `count` elements, aligned to 64 bytes.
  template <typename T> T *take(int64_t count) {
    return static_cast<T *>(takeBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  /// Room for `count` floats if the tensor is not fp32 already, otherwise null.
  float *takeUnlessF32(const Tensor &tensor, int64_t count) {
    return tensor.dtype == DType::F32 ? nullptr : take<float>(count);
  }

  /// Bytes that a workspace needs for all that was taken, at any alignment.
  size_t bytes() const { return used_ == 0 ? 0 : used_ + kAlign; }

private:
  static constexpr size_t kAlign = 64;
  void *takeBytes(size_t bytes);

  std::byte *base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

/// Workspace of a kernel whose buffers are described by the struct `Buffers`.
template <typename Buffers> size_t workspaceOf(const Call &call) {
  Scratch scratch;
  Buffers buffers(call, scratch);
  return scratch.bytes();
}

} // namespace shardc::kernels::host
