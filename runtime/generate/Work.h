// One stream of a backend for ops that are launched one by one, and the memory of their values. All
// work runs in the order of its launches, so memory is given to later work as soon as the host has
// no more use for it, although earlier work may still have to run.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string_view>

#include "kernels/api/Kernel.h"
#include "runtime/exec/Bind.h"
#include "runtime/hal/Backend.h"

namespace shardc::generate {

/// An address in memory of the device, which is kept as long as somebody holds it.
using Block = std::shared_ptr<uint8_t>;

class Work {
public:
  /// On the backend's first device. The backend must outlive the work and its blocks.
  static Result<std::unique_ptr<Work>> create(hal::Backend &backend, exec::FindKernel findKernel);
  /// Waits for the work.
  ~Work();

  /// Uninitialised memory, aligned to 256 bytes. The work must outlive it.
  Result<Block> take(int64_t bytes);
  /// Pinned memory, which stays the same unless more bytes are needed. The host must not write it
  /// before the work that reads it has ended.
  Result<uint8_t *> hostBytes(int64_t bytes);

  /// Runs the op's kernel with scratch memory. InvalidInput if there is none or it does not support
  /// the call.
  Status run(std::string_view op, kernels::Call call);
  Status copy(void *to, const void *from, int64_t bytes) {
    return stream_->copy(to, from, bytes, "copy");
  }
  Status fill(void *to, uint8_t value, int64_t bytes) {
    return stream_->fill(to, value, bytes, "fill");
  }
  /// Pinned memory of a thread that sends bytes, and the event after which it is free again.
  struct Staging {
    std::unique_ptr<hal::Buffer> host;
    std::unique_ptr<hal::Event> done;
  };
  Result<Staging> stage(int64_t bytes);
  /// Copies the first bytes of the staging memory. One thread at a time.
  Status send(void *to, Staging &from, int64_t bytes) {
    RETURN_IF_ERROR(copy(to, from.host->data(), bytes));
    return stream_->record(*from.done);
  }
  /// Waits until all work so far has ended.
  Status wait();

private:
  Work(hal::Backend &backend, exec::FindKernel findKernel)
      : backend_(backend), findKernel_(findKernel) {}
  hal::Device &device() const { return *backend_.devices().front(); }

  hal::Backend &backend_;
  exec::FindKernel findKernel_;
  std::multimap<int64_t, std::unique_ptr<hal::Buffer>> free_; ///< by bytes
  std::unique_ptr<hal::Buffer> host_;
  std::unique_ptr<hal::Stream> stream_;
  std::unique_ptr<hal::Event> done_;
  std::deque<kernels::Call> calls_; ///< the stream keeps calls by address until they have run
};

} // namespace shardc::generate
