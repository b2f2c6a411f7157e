#include "runtime/generate/Work.h"

#include <algorithm>

namespace shardc::generate {

Result<std::unique_ptr<Work>> Work::create(hal::Backend &backend, exec::FindKernel findKernel) {
  std::unique_ptr<Work> work(new Work(backend, findKernel));
  ASSIGN_OR_RETURN(work->stream_, work->device().createStream("generate", hal::StreamUse::Compute));
  ASSIGN_OR_RETURN(work->done_, work->device().createEvent());
  return work;
}

Work::~Work() { static_cast<void>(backend_.synchronize()); }

Result<Block> Work::take(int64_t bytes) {
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

Result<uint8_t *> Work::hostBytes(int64_t bytes) {
  if (!host_ || host_->bytes() < bytes) {
    RETURN_IF_ERROR(wait()); // for work that uses the old bytes
    ASSIGN_OR_RETURN(host_, device().allocate(hal::MemoryKind::Host, bytes, "host"));
  }
  return host_->data();
}

Result<Work::Staging> Work::stage(int64_t bytes) {
  Staging staging;
  ASSIGN_OR_RETURN(staging.host, device().allocate(hal::MemoryKind::Host, bytes, "weights"));
  ASSIGN_OR_RETURN(staging.done, device().createEvent());
  return staging;
}

Status Work::run(std::string_view op, kernels::Call call) {
  const kernels::Kernel *kernel = findKernel_(op);
  if (kernel == nullptr)
    return makeStatus(StatusCode::InvalidInput, "backend {} has no kernel of '{}'", backend_.name(),
                      op);
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

Status Work::wait() {
  RETURN_IF_ERROR(stream_->record(*done_));
  RETURN_IF_ERROR(done_->synchronize());
  calls_.clear();
  return Status::ok();
}

} // namespace shardc::generate
