#include "runtime/backend/cuda/CudaMemory.h"

#include <algorithm>
#include <atomic>

#include <unistd.h>

#include "runtime/backend/cuda/Check.h"

namespace shardc::cuda {
namespace {

enum class Allocator { Device, Nccl, Pinned };

std::atomic<int64_t> allocations{0};

class CudaBuffer final : public hal::Buffer {
public:
  CudaBuffer(void *data, int64_t bytes, hal::MemoryKind kind, int device, Allocator allocator)
      : Buffer(static_cast<uint8_t *>(data), bytes, kind), device_(device), allocator_(allocator) {}

  ~CudaBuffer() override {
    cudaSetDevice(device_);
    switch (allocator_) {
    case Allocator::Device:
      cudaFree(data());
      break;
    case Allocator::Nccl:
      static_cast<void>(ncclMemFree(data()));
      break;
    case Allocator::Pinned:
      cudaFreeHost(data());
      break;
    }
  }

private:
  int device_;
  Allocator allocator_;
};

} // namespace

cudaError_t allocateDevice(void **data, size_t bytes) {
  ++allocations;
  return cudaMalloc(data, bytes);
}

int64_t allocationCount() { return allocations.load(); }

Result<std::unique_ptr<hal::Buffer>> allocateBuffer(int device, hal::MemoryKind kind, int64_t bytes,
                                                    std::string_view name, bool shared) {
  SHARDC_CHECK(bytes >= 0, "a buffer has {} bytes", bytes);
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void *data = nullptr;
  Allocator allocator = kind == hal::MemoryKind::Host            ? Allocator::Pinned
                        : kind == hal::MemoryKind::Sym && shared ? Allocator::Nccl
                                                                 : Allocator::Device;
  bool good =
      allocator == Allocator::Pinned
          ? cudaHostAlloc(&data, size, cudaHostAllocMapped | cudaHostAllocPortable) == cudaSuccess
      : allocator == Allocator::Nccl ? ncclMemAlloc(&data, size) == ncclSuccess
                                     : allocateDevice(&data, size) == cudaSuccess;
  allocations += good && allocator == Allocator::Nccl;
  if (!good) {
    cudaGetLastError();
    return makeStatus(StatusCode::Exhausted,
                      "device {} {}: cannot allocate {} bytes of {} memory; {} bytes are free",
                      device, name, bytes, hal::toString(kind), bytesFree(device, kind));
  }
  return std::unique_ptr<hal::Buffer>(new CudaBuffer(data, bytes, kind, device, allocator));
}

int64_t bytesFree(int device, hal::MemoryKind kind) {
  if (kind == hal::MemoryKind::Host)
    return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  hal::DeviceMemory memory = memoryOf(device);
  return memory.total - memory.used;
}

hal::DeviceMemory memoryOf(int device) {
  size_t free = 0, total = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
    return {};
  return {static_cast<int64_t>(total), static_cast<int64_t>(total - free)};
}

} // namespace shardc::cuda
