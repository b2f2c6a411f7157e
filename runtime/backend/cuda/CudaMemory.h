// Memory of the CUDA backend: one allocation per buffer. Device memory comes from cudaMalloc;
// memory for peers comes from NCCL, so that it can be registered; host memory is pinned and mapped,
// so that kernels read it in place.
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

/// All device memory of a backend comes from here.
class Allocations : public std::enable_shared_from_this<Allocations> {
public:
  /// With `guards`, buffers lie between zones of known bytes, of a page or more each.
  static std::shared_ptr<Allocations> create(bool guards) {
    return std::shared_ptr<Allocations>(new Allocations(guards));
  }

  /// cudaMalloc, counted.
  cudaError_t allocateDevice(void **data, size_t bytes);
  /// Allocates on the device. `shared` asks for NCCL's allocator for Sym memory. The buffer keeps
  /// this object alive.
  Result<std::unique_ptr<hal::Buffer>> allocateBuffer(int device, hal::MemoryKind kind,
                                                      int64_t bytes, std::string_view name,
                                                      bool shared);
  /// How often device memory has been allocated.
  int64_t count() const { return count_.load(); }
  /// InvalidInput with the first place outside of a buffer between zones that was written to.
  /// Nothing may be running.
  Status checkGuards();

private:
  friend class CudaBuffer;
  explicit Allocations(bool guards) : keepsGuards_(guards) {}

  const bool keepsGuards_;
  std::atomic<int64_t> count_{0};
  std::mutex mutex_;
  std::vector<const CudaBuffer *> guarded_; ///< the buffers between zones that are alive
};

/// Bytes that could still be allocated, as far as device or system say.
int64_t bytesFree(int device, hal::MemoryKind kind);

/// The driver's report on the device's memory; zeros if there is none.
hal::DeviceMemory memoryOf(int device);

} // namespace shardc::cuda
