// One stream of a backend for ops that are launched one by one, and the memory of their values. All
// work runs in the order of its launches, so memory is given to later work as soon as the host has
// no more use for it, although earlier work may still have to run.
#pragma once

#include <algorithm>
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
  static Result<std::unique_ptr<Work>> create(hal::Backend &backend, exec::FindKernel findKernel) {
    std::unique_ptr<Work> work(new Work(backend, findKernel));
    ASSIGN_OR_RETURN(work->stream_,
                     work->device().createStream("generate", hal::StreamUse::Compute));
    ASSIGN_OR_RETURN(work->done_, work->device().createEvent());
    return work;
  }

  /// Waits for the work.
  ~Work() { static_cast<void>(backend_.synchronize()); }

  /// Uninitialised memory, aligned to 256 bytes. The work must outlive it.
  Result<Block> take(int64_t bytes) {
    // Small blocks have one size, and no block is more than twice as large as needed.
    constexpr int64_t kBytesMin = 256;
    bytes = std::max(bytes, kBytesMin);
    std::unique_ptr<hal::Buffer> buffer;
    if (auto found = free_.lower_bound(bytes); found != free_.end() && found->first <= 2 * bytes) {
      buffer = std::move(free_.extract(found).mapped());
    } else {
      ASSIGN_OR_RETURN(buffer, device().allocate(hal::MemoryKind::Work, bytes, "value"));
    }
    hal::Buffer *taken = buffer.release();
    return Block(taken->data(), [this, taken](uint8_t *) {
      free_.emplace(taken->bytes(), std::unique_ptr<hal::Buffer>(taken));
    });
  }

  /// Pinned memory, which stays the same unless more bytes are needed. The host must not write it
  /// before the work that reads it has ended.
  Result<uint8_t *> hostBytes(int64_t bytes) {
    if (!host_ || host_->bytes() < bytes) {
      RETURN_IF_ERROR(wait()); // for work that uses the old bytes
      ASSIGN_OR_RETURN(host_, device().allocate(hal::MemoryKind::Host, bytes, "host"));
    }
    return host_->data();
  }

  /// Runs the op's kernel with scratch memory. InvalidInput if there is none or it does not support
  /// the call.
  Status run(std::string_view op, kernels::Call call) {
    const kernels::Kernel *kernel = findKernel_(op);
    if (kernel == nullptr)
      return makeStatus(StatusCode::InvalidInput, "backend {} has no kernel of '{}'",
                        backend_.name(), op);
    call.context = backend_.kernelContext();
    if (const char *reason = kernel->accepts(call))
      return makeStatus(StatusCode::InvalidInput,
                        "the kernel of '{}' on backend {} refuses its operands: {}", op,
                        backend_.name(), reason);
    Block scratch;
    if (size_t bytes = kernel->workspaceBytes != nullptr ? kernel->workspaceBytes(call) : 0;
        bytes > 0) {
      ASSIGN_OR_RETURN(scratch, take(static_cast<int64_t>(bytes)));
      call.workspace = scratch.get(), call.workspaceBytes = bytes;
    }
    calls_.push_back(call);
    return stream_->launch(kernel->run, calls_.back(), kernel->name);
  }

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
  Result<Staging> stage(int64_t bytes) {
    Staging staging;
    ASSIGN_OR_RETURN(staging.host, device().allocate(hal::MemoryKind::Host, bytes, "weights"));
    ASSIGN_OR_RETURN(staging.done, device().createEvent());
    return staging;
  }

  /// Copies the first bytes of the staging memory. One thread at a time.
  Status send(void *to, Staging &from, int64_t bytes) {
    RETURN_IF_ERROR(copy(to, from.host->data(), bytes));
    return stream_->record(*from.done);
  }
  /// Waits until all work so far has ended.
  Status wait() {
    RETURN_IF_ERROR(stream_->record(*done_));
    RETURN_IF_ERROR(done_->synchronize());
    calls_.clear();
    return Status::ok();
  }

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
