#include "runtime/backend/cuda/Peers.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include <cuda.h>

#include "kernels/cuda/DriverFunction.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CudaMemory.h"

namespace shardc::cuda {
namespace {

using kernels::cuda::PeerLine;
using kernels::cuda::PeerView;

/// A random number that the system draws at boot. Processes with the same one run on the same
/// machine.
std::string bootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A random number per process. Process ids are not unique if containers share a machine.
uint64_t processToken() {
  static const uint64_t token = [] {
    std::random_device draw;
    return uint64_t{draw()} << 32 | draw();
  }();
  return token;
}

} // namespace

/// Device memory that other processes may open.
struct Peers::Exported {
  void *address;
  cudaIpcMemHandle_t handle;
  uint64_t offset; ///< offset of the address in the allocation that the handle opens
};

/// A member's description of itself for the others. It is sent as bytes, since all processes run
/// the same program.
struct Peers::Card {
  char machine[64];
  uint64_t process;
  int32_t index, device;
  bool isOpen; ///< whether the memory can be opened
  Exported memory, lines;
};

/// A handle opens the whole allocation that contains `data`, so the offset in the allocation is
/// sent too.
Status Peers::exportMemory(void *data, Exported &to) {
  void *found = kernels::cuda::findDriverFunction("cuMemGetAddressRange");
  if (!found)
    return Status(StatusCode::Unavailable, "the driver has no cuMemGetAddressRange");
  CUdeviceptr base = 0, address = reinterpret_cast<CUdeviceptr>(data);
  size_t bytes = 0;
  CUresult ranged = reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr)>(found)(
      &base, &bytes, address);
  if (ranged != CUDA_SUCCESS)
    return makeStatus(StatusCode::Unavailable, "cuMemGetAddressRange failed with error {}",
                      static_cast<int>(ranged));
  to.address = data;
  to.offset = address - base;
  RETURN_IF_CUDA_ERROR(cudaIpcGetMemHandle(&to.handle, data));
  return Status::ok();
}

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

/// Allocates the lines through which members signal each other, and describes this member to the
/// others: its machine, process and device, and handles for its memory. `stop_` is in host memory,
/// so that the host can end kernels that wait for a peer.
Result<std::string> Peers::describe(const std::string &name) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  int64_t bytes = linesBytes() + size_ * static_cast<int64_t>(sizeof(PeerView)) +
                  blocks_ * static_cast<int64_t>(sizeof(uint32_t));
  ASSIGN_OR_RETURN(control_, device_.allocations->allocateBuffer(
                                 device_.device, hal::MemoryKind::Work, bytes, name, false));
  RETURN_IF_CUDA_ERROR(cudaMemset(control_->data(), 0, static_cast<size_t>(bytes)));
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize()); // it must be zero before others write
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
  exported_ = exportMemory(memory_.data, card.memory);
  if (exported_.isOk())
    exported_ = exportMemory(control_->data(), card.lines);
  card.isOpen = exported_.isOk();
  cudaGetLastError(); // other allocators' memory cannot be exported
  return std::string(reinterpret_cast<const char *>(&card), sizeof card);
}

Result<std::byte *> Peers::reach(const Card &card, const Exported &exported) {
  if (card.process == processToken())
    return static_cast<std::byte *>(exported.address);
  void *data = nullptr;
  RETURN_IF_CUDA_ERROR(
      cudaIpcOpenMemHandle(&data, exported.handle, cudaIpcMemLazyEnablePeerAccess));
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

/// Opens the memory of every member, in the order of the members. A status of kind Unavailable
/// means that the channel works without access to peers.
Status Peers::open(const std::vector<std::string> &described) {
  auto unreached = [](const std::string &why) { return Status(StatusCode::Unavailable, why); };
  RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.device));
  const std::string machine = bootId();
  for (int member = 0; member < size_; ++member) {
    Card card;
    if (static_cast<size_t>(member) >= described.size() ||
        !findCard(described[static_cast<size_t>(member)], member, card))
      return unreached(fmt::format("member {} says nothing of its memory", member));
    if (member == index_)
      RETURN_IF_ERROR(exported_);
    if (!card.isOpen)
      return unreached("");
    if (machine.empty() || machine.compare(0, sizeof card.machine, card.machine,
                                           strnlen(card.machine, sizeof card.machine)) != 0)
      return unreached("they are on several machines");
    if (card.process == processToken() && card.device != device_.device) {
      cudaError_t enabled = cudaDeviceEnablePeerAccess(card.device, 0);
      if (enabled != cudaErrorPeerAccessAlreadyEnabled)
        RETURN_IF_CUDA_ERROR(enabled);
    }
    PeerView view = {};
    ASSIGN_OR_RETURN(view.memory, reach(card, card.memory));
    ASSIGN_OR_RETURN(auto *lines, reach(card, card.lines));
    view.lines = reinterpret_cast<PeerLine *>(lines);
    views_.push_back(view);
  }
  return Status::ok();
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
