#include "runtime/backend/cuda/Peers.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include <cuda.h>

#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CudaMemory.h"

namespace shardc::cuda {
namespace {

using kernels::cuda::PeerLine;
using kernels::cuda::PeerView;

/// A number that the system draws when it starts: processes with the same one share a machine.
std::string bootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Drawn once: numbers of processes are not unique where containers share a machine.
uint64_t processToken() {
  static const uint64_t token = [] {
    std::random_device draw;
    return uint64_t{draw()} << 32 | draw();
  }();
  return token;
}

/// Device memory that another process can open.
struct Exported {
  void *address;
  cudaIpcMemHandle_t handle;
  uint64_t offset; ///< of the address in what the handle opens: an allocation from its begin
};

bool exportMemory(void *data, Exported &to) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result = {};
  if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 12000, cudaEnableDefault,
                                       &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return false;
  CUdeviceptr base = 0, address = reinterpret_cast<CUdeviceptr>(data);
  size_t bytes = 0;
  if (reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr)>(found)(
          &base, &bytes, address) != CUDA_SUCCESS)
    return false;
  to.address = data;
  to.offset = address - base;
  return cudaIpcGetMemHandle(&to.handle, data) == cudaSuccess;
}

} // namespace

/// What a member tells the others of itself, as bytes between processes of one program.
struct Peers::Card {
  char machine[64];
  uint64_t process;
  int32_t index, device;
  bool isOpen; ///< there is a way in
  Exported memory, lines;
};

Peers::~Peers() {
  cudaSetDevice(device_.device);
  for (void *data : opened_)
    cudaIpcCloseMemHandle(data);
  if (stop_)
    cudaFreeHost(stop_);
}

int64_t Peers::linesBytes() const {
  return int64_t{size_} * blocks_ * static_cast<int64_t>(sizeof(PeerLine));
}

Result<std::string> Peers::describe(const std::string &name) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  int64_t bytes = linesBytes() + size_ * static_cast<int64_t>(sizeof(PeerView)) +
                  blocks_ * static_cast<int64_t>(sizeof(uint32_t));
  ASSIGN_OR_RETURN(control_, device_.allocations->allocateBuffer(
                                 device_.device, hal::MemoryKind::Work, bytes, name, false));
  RETURN_IF_CUDA_ERROR(cudaMemset(control_->data(), 0, static_cast<size_t>(bytes)));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize()); // before others write to it
  void *stop = nullptr;
  RETURN_IF_CUDA_ERROR(
      cudaHostAlloc(&stop, sizeof(uint32_t), cudaHostAllocMapped | cudaHostAllocPortable));
  stop_ = static_cast<uint32_t *>(stop);
  *stop_ = 0;
  Card card = {};
  bootId().copy(card.machine, sizeof card.machine);
  card.process = processToken();
  card.index = index_;
  card.device = device_.device;
  card.isOpen = memory_.data && exportMemory(memory_.data, card.memory) &&
                exportMemory(control_->data(), card.lines);
  cudaGetLastError(); // memory of another allocator is no error of the run
  return std::string(reinterpret_cast<const char *>(&card), sizeof card);
}

/// Of a member's memory, or of what it is told: the address for this device, or null.
std::byte *Peers::reach(const Card &card, bool isLines) {
  const Exported &exported = isLines ? card.lines : card.memory;
  if (card.process == processToken())
    return static_cast<std::byte *>(exported.address);
  void *data = nullptr;
  if (cudaIpcOpenMemHandle(&data, exported.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
    return nullptr;
  opened_.push_back(data);
  return static_cast<std::byte *>(data) + exported.offset;
}

bool Peers::findCard(const std::string &described, int index, Card &card) {
  for (size_t at = 0; at + sizeof card <= described.size(); at += sizeof card) {
    std::memcpy(&card, described.data() + at, sizeof card);
    if (card.index == index)
      return true;
  }
  return false;
}

bool Peers::open(const std::vector<std::string> &described) {
  if (described.size() != static_cast<size_t>(size_) ||
      cudaSetDevice(device_.device) != cudaSuccess)
    return false;
  const std::string machine = bootId();
  for (int member = 0; member < size_; ++member) {
    Card card;
    if (!findCard(described[static_cast<size_t>(member)], member, card) || !card.isOpen ||
        machine.empty() ||
        machine.compare(0, sizeof card.machine, card.machine,
                        strnlen(card.machine, sizeof card.machine)) != 0)
      return false;
    if (card.process == processToken() && card.device != device_.device) {
      int can = 0;
      cudaError_t enabled = cudaErrorInvalidDevice;
      if (cudaDeviceCanAccessPeer(&can, device_.device, card.device) == cudaSuccess && can != 0)
        enabled = cudaDeviceEnablePeerAccess(card.device, 0);
      if (enabled != cudaSuccess && enabled != cudaErrorPeerAccessAlreadyEnabled)
        return false;
    }
    PeerView view = {reach(card, false), nullptr};
    view.lines = reinterpret_cast<PeerLine *>(reach(card, true));
    if (!view.memory || !view.lines)
      return false;
    views_.push_back(view);
  }
  return true;
}

Status Peers::fill() {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  RETURN_IF_CUDA_ERROR(cudaMemcpy(control_->data() + linesBytes(), views_.data(),
                                  views_.size() * sizeof(PeerView), cudaMemcpyHostToDevice));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  return Status::ok();
}

void Peers::complete(kernels::cuda::PeerRows &rows, const std::byte *out) const {
  rows.index = index_, rows.size = size_;
  rows.views = reinterpret_cast<const PeerView *>(control_->data() + linesBytes());
  rows.calls = reinterpret_cast<uint32_t *>(control_->data() + linesBytes() +
                                            size_ * static_cast<int64_t>(sizeof(PeerView)));
  rows.offset = static_cast<uint64_t>(out - static_cast<const std::byte *>(memory_.data));
  rows.stop = stop_;
}

} // namespace shardc::cuda
