// Divides a call's workspace into buffers. A kernel declares its buffers once, in a struct whose
// constructor takes them from a Scratch. In counting mode, the struct yields workspaceBytes; with a
// call, it yields the addresses. So the two always agree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

class Scratch {
public:
  /// Counting mode: `take` returns null.
  Scratch() = default;
  /// Takes buffers from the call's workspace.
  explicit Scratch(const Call &call);

  /// Takes `count` elements, aligned to 64 bytes.
  template <typename T> T *take(int64_t count) {
    return static_cast<T *>(takeBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  /// Takes `count` floats, or returns null if the tensor is fp32 already.
  float *takeUnlessF32(const Tensor &tensor, int64_t count) {
    return tensor.dtype == DType::F32 ? nullptr : take<float>(count);
  }

  /// The size of a workspace for everything that was taken, whatever its alignment.
  size_t bytes() const { return used_ == 0 ? 0 : used_ + kAlign; }

private:
  static constexpr size_t kAlign = 64;
  void *takeBytes(size_t bytes);

  std::byte *base_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

/// The workspace of a kernel whose buffers are the struct `Buffers`.
template <typename Buffers> size_t workspaceOf(const Call &call) {
  Scratch scratch;
  Buffers buffers(call, scratch);
  return scratch.bytes();
}

/// What a kernel executes, and the workspace that it needs.
struct Work {
  KernelFn run;
  size_t (*workspaceBytes)(const Call &);
};

/// The buffers that a function takes after the call.
template <typename Buffers> Buffers buffersOf(void (*run)(const Call &, Buffers &));

/// Calls a function with its buffers, which it takes from the call's workspace.
template <auto kRun> void runWithBuffers(const Call &call) {
  Scratch scratch(call);
  decltype(buffersOf(kRun)) buffers(call, scratch);
  kRun(call, buffers);
}
template <auto kRun>
constexpr Work withBuffers = {runWithBuffers<kRun>, workspaceOf<decltype(buffersOf(kRun))>};

} // namespace shardc::kernels::host
