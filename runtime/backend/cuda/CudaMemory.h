// Device and host memory of the CUDA backend, with one allocation per buffer. Device memory comes
// from cudaMalloc. Memory for peers comes from NCCL, so that it can be registered. Host memory is
// pinned and mapped, so that kernels can read it in place.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <cuda_runtime.h>

#include "runtime/base/Status.h"
#include "runtime/hal/Backend.h"

namespace shardc::cuda {

class CudaBuffer;

/// Allocates all device memory of a backend.
class Allocations : public std::enable_shared_from_this<Allocations> {
public:
  /// With `guards`, each buffer lies between two zones of at least a page with known bytes.
  static std::shared_ptr<Allocations> create(bool guards) {
    return std::shared_ptr<Allocations>(new Allocations(guards));
  }

  /// Calls cudaMalloc and counts the call.
  cudaError_t allocateDevice(void **data, size_t bytes);
  /// Allocates on the device. `shared` requests NCCL's allocator for Sym memory. The buffer keeps
  /// this object alive.
  Result<std::unique_ptr<hal::Buffer>> allocateBuffer(int device, hal::MemoryKind kind,
                                                      int64_t bytes, std::string_view name,
                                                      bool shared);
  /// Number of device allocations so far.
  int64_t count() const { return count_.load(); }
  /// InvalidInput with the location of the first write to a guard zone. Nothing may be running.
  Status checkGuards();

private:
  friend class CudaBuffer;
  explicit Allocations(bool guards) : keepsGuards_(guards) {}

  const bool keepsGuards_;
  std::atomic<int64_t> count_{0};
  std::mutex mutex_;
  std::vector<const CudaBuffer *> guarded_; ///< live buffers with guard zones
};

/// Bytes that could still be allocated, as reported by the device or the system.
int64_t bytesFree(int device, hal::MemoryKind kind);

/// The driver's report on the device's memory; zeros if there is none.
hal::DeviceMemory memoryOf(int device);

} // namespace shardc::cuda
