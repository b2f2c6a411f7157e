#include "runtime/backend/cuda/CudaMemory.h"

#include <algorithm>
#include <string>

#include "runtime/backend/cuda/Check.h"
#include "runtime/base/FreeMemory.h"
#include "runtime/base/Reports.h"

namespace shardc::cuda {
namespace {

/// Minimum size of a guard zone: a multiple of NCCL's alignment for registered memory.
constexpr size_t kGuardBytes = 4096;
constexpr uint8_t kGuardByte = 0xc5;

enum class Allocator { Device, Nccl, Pinned };

/// An allocation: a buffer and the guard zones around it.
struct Block {
  uint8_t *base = nullptr;
  size_t bytes = 0;
  size_t guardBytes = 0; ///< bytes before the buffer, and at least as many after it
};

} // namespace

class CudaBuffer final : public hal::Buffer {
public:
  CudaBuffer(std::shared_ptr<Allocations> origin, const Block &block, int64_t bytes,
             hal::MemoryKind kind, int device, Allocator allocator, std::string name)
      : Buffer(block.base + block.guardBytes, bytes, kind), origin_(std::move(origin)),
        block_(block), device_(device), allocator_(allocator), name_(std::move(name)) {
    if (block_.guardBytes == 0)
      return;
    std::lock_guard lock(origin_->mutex_);
    origin_->guarded_.push_back(this);
  }

  ~CudaBuffer() override {
    if (block_.guardBytes > 0) {
      std::lock_guard lock(origin_->mutex_);
      std::erase(origin_->guarded_, this);
    }
    cudaSetDevice(device_);
    switch (allocator_) {
    case Allocator::Device:
      cudaFree(block_.base);
      break;
    case Allocator::Nccl:
      static_cast<void>(ncclMemFree(block_.base));
      break;
    case Allocator::Pinned:
      cudaFreeHost(block_.base);
      break;
    }
  }

  /// Fills the guard zones, if there are any. The upper zone begins right after the buffer, so the
  /// first byte past the end is checked. It fills the rest of the last page.
  Status fillGuards() const {
    if (block_.guardBytes == 0)
      return Status::ok();
    size_t end = block_.guardBytes + static_cast<size_t>(bytes());
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(cudaMemset(block_.base, kGuardByte, block_.guardBytes));
    RETURN_IF_CUDA_ERROR(cudaMemset(block_.base + end, kGuardByte, block_.bytes - end));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(nullptr));
    return Status::ok();
  }

  /// InvalidInput with the location of the first overwritten byte of the guard zones.
  Status checkGuards(std::vector<uint8_t> &copy) const {
    size_t end = block_.guardBytes + static_cast<size_t>(bytes()), above = block_.bytes - end;
    copy.resize(block_.guardBytes + above);
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    RETURN_IF_CUDA_ERROR(
        cudaMemcpy(copy.data(), block_.base, block_.guardBytes, cudaMemcpyDefault));
    RETURN_IF_CUDA_ERROR(
        cudaMemcpy(copy.data() + block_.guardBytes, block_.base + end, above, cudaMemcpyDefault));
    for (size_t before = 1; before <= block_.guardBytes; ++before)
      if (copy[block_.guardBytes - before] != kGuardByte)
        return makeStatus(report::WriteOutOfBounds,
                          "device {} {}: a write {} bytes before its first byte", device_, name_,
                          before);
    for (size_t past = 0; past < above; ++past)
      if (copy[block_.guardBytes + past] != kGuardByte)
        return makeStatus(report::WriteOutOfBounds,
                          "device {} {}: a write {} bytes past its {} bytes", device_, name_, past,
                          bytes());
    return Status::ok();
  }

private:
  std::shared_ptr<Allocations> origin_;
  Block block_;
  int device_;
  Allocator allocator_;
  std::string name_;
};

cudaError_t Allocations::allocateDevice(void **data, size_t bytes) {
  ++count_;
  return cudaMalloc(data, bytes);
}

Status Allocations::checkGuards() {
  std::vector<uint8_t> copy;
  std::lock_guard lock(mutex_);
  for (const CudaBuffer *buffer : guarded_)
    RETURN_IF_ERROR(buffer->checkGuards(copy));
  return Status::ok();
}

/// Only memory of kind Sym that peers share needs NCCL's allocator. With guards, the block has a
/// zone before the buffer and one after it, and its size is a multiple of kGuardBytes.
Result<std::unique_ptr<hal::Buffer>> Allocations::allocateBuffer(int device, hal::MemoryKind kind,
                                                                 int64_t bytes,
                                                                 std::string_view name,
                                                                 bool shared) {
  SHARDC_CHECK(bytes >= 0, "a buffer has {} bytes", bytes);
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  Block block;
  block.guardBytes = keepsGuards_ ? kGuardBytes : 0;
  block.bytes = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (block.guardBytes > 0)
    block.bytes = (block.bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes + 2 * kGuardBytes;
  void *data = nullptr;
  Allocator allocator = kind == hal::MemoryKind::Host            ? Allocator::Pinned
                        : kind == hal::MemoryKind::Sym && shared ? Allocator::Nccl
                                                                 : Allocator::Device;
  bool good = allocator == Allocator::Pinned
                  ? cudaHostAlloc(&data, block.bytes,
                                  cudaHostAllocMapped | cudaHostAllocPortable) == cudaSuccess
              : allocator == Allocator::Nccl ? ncclMemAlloc(&data, block.bytes) == ncclSuccess
                                             : allocateDevice(&data, block.bytes) == cudaSuccess;
  count_ += good && allocator == Allocator::Nccl;
  if (!good) {
    cudaGetLastError();
    return makeStatus(StatusCode::Exhausted,
                      "device {} {}: cannot allocate {} bytes of {} memory; {} bytes are free",
                      device, name, bytes, hal::toString(kind), bytesFree(device, kind));
  }
  block.base = static_cast<uint8_t *>(data);
  auto buffer = std::make_unique<CudaBuffer>(shared_from_this(), block, bytes, kind, device,
                                             allocator, std::string(name));
  RETURN_IF_ERROR(buffer->fillGuards());
  return std::unique_ptr<hal::Buffer>(std::move(buffer));
}

int64_t bytesFree(int device, hal::MemoryKind kind) {
  if (kind == hal::MemoryKind::Host)
    return machineBytesFree();
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
