// Creates channels with NCCL and device memory (channels/Connect.h). Everything is created before
// any capture.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/backend/channels/Uses.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/Config.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/GroupCall.h"
#include "runtime/base/SmallCollectives.h"

namespace shardc::cuda {
namespace {

using channels::bytesMaxOf;
using channels::isUsedFor;
using channels::meetsBeforeTransfers;

/// Bytes per member that a warm-up collective transfers.
constexpr int64_t kWarmUpBytes = 4096;

/// Temporary device memory for a setup step. It uses lent memory if that is large enough, because a
/// plan's arenas may leave no free memory on the device.
class Scratch {
public:
  static Result<std::unique_ptr<Scratch>> take(const DeviceState &device,
                                               const hal::SharedMemory *lent, int64_t bytes) {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(device.device));
    bool isLent = lent && lent->bytes >= bytes;
    void *data = isLent ? lent->data : nullptr;
    if (!isLent)
      RETURN_IF_CUDA_ERROR(device.allocations->allocateDevice(&data, static_cast<size_t>(bytes)));
    std::unique_ptr<Scratch> scratch(new Scratch(data, isLent));
    RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&scratch->stream_, cudaStreamNonBlocking));
    RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
    return scratch;
  }
  ~Scratch() {
    if (stream_)
      cudaStreamDestroy(stream_);
    if (!isLent_)
      cudaFree(data_);
  }
  std::byte *data() const { return static_cast<std::byte *>(data_); }
  cudaStream_t stream() const { return stream_; }

private:
  Scratch(void *data, bool isLent) : data_(data), isLent_(isLent) {}
  void *data_;
  bool isLent_;
  cudaStream_t stream_ = nullptr;
};

} // namespace

Status CudaChannel::connect(const Options &options) {
  std::vector<int> here;
  for (std::unique_ptr<Member> &member : members_) {
    here.push_back(member->rank);
    for (const hal::SharedMemory &shared : desc().shared)
      if (shared.rank == member->rank && shared.bytes > 0)
        member->shared = &shared;
    for (const hal::SharedMemory &lent : desc().lent)
      if (lent.rank == member->rank)
        member->lent = &lent;
  }
  config_ = configOf(desc(), options);
  return channels::connect(desc(), here, *this,
                           {options.rendezvous, options.refusals, options.emit, options.failed});
}

Result<std::string> CudaChannel::makeId() {
  ncclUniqueId id = {};
  RETURN_IF_CUDA_ERROR(ncclGetUniqueId(&id));
  return std::string(id.internal, sizeof id.internal);
}

Status CudaChannel::init(const std::string &bytes) {
  ncclUniqueId id = {};
  if (bytes.size() != sizeof id.internal)
    return makeStatus(StatusCode::Internal, "channel '{}': an id of {} bytes instead of {}",
                      desc().name, bytes.size(), sizeof id.internal);
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (std::unique_ptr<Member> &member : members_) {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(member->device->device));
    RETURN_IF_CUDA_ERROR(
        ncclCommInitRankConfig(&member->communicator, size(), id, member->index, &config_));
  }
  RETURN_IF_CUDA_ERROR(group.end());
  for (std::unique_ptr<Member> &member : members_)
    watch_.add(member->communicator, desc().name);
  return Status::ok();
}

Status CudaChannel::split() {
  ncclConfig_t config = config_;
  config.minCTAs = config.maxCTAs = 1;
  for (std::unique_ptr<Member> &member : members_) {
    ASSIGN_OR_RETURN(member->meetingBytes,
                     member->device->allocations->allocateBuffer(
                         member->device->device, hal::MemoryKind::Work, size(),
                         fmt::format("ends of channel '{}'", desc().name), false));
  }
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (std::unique_ptr<Member> &member : members_) {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(member->device->device));
    RETURN_IF_CUDA_ERROR(
        ncclCommSplit(member->communicator, 0, member->index, &member->meeting, &config));
  }
  RETURN_IF_CUDA_ERROR(group.end());
  for (std::unique_ptr<Member> &member : members_)
    watch_.add(member->meeting, desc().name);
  return Status::ok();
}

bool CudaChannel::canRegister() const {
  return std::ranges::all_of(members_, [](const auto &member) { return member->shared; });
}

int CudaChannel::peerBlocks() const {
  constexpr int kBlocks = 32;
  int32_t limit = desc().multiprocessors;
  return static_cast<int>(
      std::bit_floor(static_cast<unsigned>(limit > 0 ? std::min(limit, kBlocks) : kBlocks)));
}

Result<std::string> CudaChannel::describePeers() {
  std::string described;
  for (std::unique_ptr<Member> &member : members_) {
    hal::SharedMemory memory = {member->rank, nullptr, 0};
    for (const hal::SharedMemory &reached : desc().reached)
      if (reached.rank == member->rank)
        memory = reached;
    member->peers =
        std::make_unique<Peers>(*member->device, memory, member->index, size(), peerBlocks());
    ASSIGN_OR_RETURN(std::string card,
                     member->peers->describe(fmt::format("peers of channel '{}'", desc().name)));
    described += card;
  }
  return described;
}

Status CudaChannel::openPeers(const std::vector<std::string> &described) {
  Status reached;
  for (std::unique_ptr<Member> &member : members_)
    if (reached.isOk())
      reached = member->peers->open(described);
  return reached;
}

Status CudaChannel::decidePeers(bool keeps) {
  cudaGetLastError(); // the refusal is not an error of the run
  for (std::unique_ptr<Member> &member : members_) {
    if (!keeps) {
      member->peers.reset();
      continue;
    }
    RETURN_IF_ERROR(member->peers->fill());
    watch_.addStop(member->peers->stop());
  }
  return Status::ok();
}

/// A group call, since members wait for each other. A window lasts as long as its communicator.
bool CudaChannel::registerWindows() {
  std::vector<ncclWindow_t> windows(members_.size(), nullptr);
  GroupCall group;
  bool good = group.begin() == ncclSuccess;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member &member = *members_[i];
    cudaSetDevice(member.device->device);
    good = good && ncclCommWindowRegister(member.communicator, member.shared->data,
                                          static_cast<size_t>(member.shared->bytes), &windows[i],
                                          NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess;
  }
  good = group.end() == ncclSuccess && good;
  // If the driver or the links do not support windows, NCCL reports no error but returns null.
  for (ncclWindow_t window : windows)
    good = good && window != nullptr;
  return good;
}

bool CudaChannel::registerLocally() {
  bool good = true;
  for (std::unique_ptr<Member> &member : members_) {
    cudaSetDevice(member->device->device);
    good = good && member->shared &&
           ncclCommRegister(member->communicator, member->shared->data,
                            static_cast<size_t>(member->shared->bytes),
                            &member->localHandle) == ncclSuccess;
  }
  return good;
}

/// NCCL treats a buffer that one member registered as registered by all: its first collective would
/// hang.
void CudaChannel::dropLocal() {
  for (std::unique_ptr<Member> &member : members_)
    if (member->localHandle)
      static_cast<void>(
          ncclCommDeregister(member->communicator, std::exchange(member->localHandle, nullptr)));
}

Status CudaChannel::warmUp() {
  RETURN_IF_ERROR(useAll());
  return measureGather();
}

bool CudaChannel::sendsParts() const {
  using Kind = hal::CollectiveKind;
  constexpr Kind kKinds[] = {Kind::ReduceScatter, Kind::AllReduce, Kind::Send,
                             Kind::Recv,          Kind::AllToAll,  Kind::Shift};
  return std::ranges::any_of(kKinds, [&](Kind kind) { return isUsedFor(desc(), kind, false); });
}

int64_t CudaChannel::sharedBytes() const {
  const hal::SharedMemory *shared = members_.front()->shared;
  return shared ? shared->bytes : 0;
}

/// Executes every form of collective that `issue` will use, twice. NCCL creates connections and the
/// copy engines' flags at the first use, which must not happen in a capture. After exactly one use
/// of the copy engines, a captured collective would not wait. Unused forms are left out, since
/// connections take megabytes each. Shared buffers are used if they are large enough, since NCCL
/// also announces registered buffers to peers at the first use. They have no content yet.
Status CudaChannel::useAll() {
  using Kind = hal::CollectiveKind;
  bool allReduces =
      isUsedFor(desc(), Kind::AllReduce, true) || isUsedFor(desc(), Kind::AllReduceMax, false);
  // NCCL chooses other algorithms for other sizes.
  int64_t part = kWarmUpBytes, whole = part * size(), most = allReduces ? bytesMaxOf(desc()) : 0,
          needed = std::max(2 * whole, most);
  bool isShared = sharedBytes() >= needed;
  // Plans never reduce between windows.
  bool sumsShare = isShared && desc().registration == hal::Registration::Local;
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (std::unique_ptr<Member> &member : members_) {
    ASSIGN_OR_RETURN(auto memory, Scratch::take(*member->device, member->lent,
                                                sumsShare ? kWarmUpBytes : needed));
    scratch.push_back(std::move(memory));
  }
  auto baseOf = [](bool shares, Member &member, Scratch &memory) {
    return shares ? static_cast<std::byte *>(member.shared->data) : memory.data();
  };
  auto eachMember = [&](bool wanted, auto queue) -> Status {
    GroupCall group;
    RETURN_IF_CUDA_ERROR(group.begin()); // all members join, also with an empty group
    for (size_t i = 0; i < members_.size() && wanted; ++i)
      RETURN_IF_CUDA_ERROR(queue(*members_[i], *scratch[i]));
    RETURN_IF_CUDA_ERROR(group.end());
    return Status::ok();
  };
  const size_t bytes = kWarmUpBytes;
  for (int turn = 0; turn < 2; ++turn) {
    RETURN_IF_ERROR(eachMember(true, [&](Member &member, Scratch &memory) {
      std::byte *base = baseOf(isShared, member, memory);
      return ncclAllGather(base + member.index * part, base, bytes, ncclUint8, member.communicator,
                           memory.stream());
    }));
    RETURN_IF_ERROR(eachMember(
        isUsedFor(desc(), Kind::ReduceScatter, true), [&](Member &member, Scratch &memory) {
          std::byte *base = baseOf(sumsShare, member, memory);
          return ncclReduceScatter(base, base + whole, bytes / 2, ncclBfloat16, ncclSum,
                                   member.communicator, memory.stream());
        }));
    for (int64_t count : {part, most / 16, most})
      RETURN_IF_ERROR(eachMember(allReduces && count >= part, [&](Member &member, Scratch &memory) {
        std::byte *base = baseOf(sumsShare, member, memory);
        return ncclAllReduce(base, base, static_cast<size_t>(count / 2), ncclBfloat16, ncclSum,
                             member.communicator, memory.stream());
      }));
    RETURN_IF_ERROR(eachMember(meetsBeforeTransfers(desc()), [&](Member &member, Scratch &memory) {
      return meet(member, memory.stream());
    }));
    RETURN_IF_ERROR(eachMember(sendsParts(), [&](Member &member, Scratch &memory) {
      std::byte *base = baseOf(sumsShare, member, memory);
      ncclResult_t result = ncclSuccess;
      for (int p = 0; p < size() && result == ncclSuccess; ++p) {
        result =
            ncclSend(base + p * part, bytes, ncclUint8, p, member.communicator, memory.stream());
        if (result == ncclSuccess)
          result = ncclRecv(base + whole + p * part, bytes, ncclUint8, p, member.communicator,
                            memory.stream());
      }
      return result;
    }));
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(members_[i]->device->device));
    RETURN_IF_ERROR(watch_.wait([&] { return cudaStreamQuery(scratch[i]->stream()); },
                                fmt::format("warming up channel '{}'", desc().name)));
  }
  return Status::ok();
}

Status CudaChannel::measureGather() {
  constexpr int kTurns = 4;
  int64_t most = 0; // stays 0 without an all-gather
  for (const hal::ChannelUse &use : desc().uses)
    if (use.kind == hal::CollectiveKind::AllGather)
      most = std::max(most, use.bytes);
  std::vector<std::unique_ptr<Scratch>> scratch;
  int64_t part = most / size() / 256 * 256;
  bool isShared = sharedBytes() >= part * size();
  if (part < kSmallCollectiveBytes)
    return Status::ok(); // a smaller one would measure latency
  for (std::unique_ptr<Member> &member : members_) {
    ASSIGN_OR_RETURN(auto memory, Scratch::take(*member->device, member->lent,
                                                isShared ? kWarmUpBytes : part * size()));
    scratch.push_back(std::move(memory));
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(members_.front()->device->device));
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    ~Events() {
      for (cudaEvent_t event : {begin, end})
        if (event)
          cudaEventDestroy(event);
    }
  } events;
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&events.begin));
  RETURN_IF_CUDA_ERROR(cudaEventCreate(&events.end));
  for (int turn = 0; turn <= kTurns; ++turn) {
    if (turn == 1)
      RETURN_IF_CUDA_ERROR(cudaEventRecord(events.begin, scratch.front()->stream()));
    GroupCall group;
    RETURN_IF_CUDA_ERROR(group.begin());
    for (size_t i = 0; i < members_.size(); ++i) {
      Member &member = *members_[i];
      auto *base = isShared ? static_cast<std::byte *>(member.shared->data) : scratch[i]->data();
      RETURN_IF_CUDA_ERROR(ncclAllGather(base + member.index * part, base,
                                         static_cast<size_t>(part), ncclUint8, member.communicator,
                                         scratch[i]->stream()));
    }
    RETURN_IF_CUDA_ERROR(group.end());
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(members_.front()->device->device));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(events.end, scratch.front()->stream()));
  for (const std::unique_ptr<Scratch> &memory : scratch)
    RETURN_IF_ERROR(watch_.wait([&] { return cudaStreamQuery(memory->stream()); },
                                fmt::format("measuring channel '{}'", desc().name)));
  float milliseconds = 0;
  RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, events.begin, events.end));
  double received = static_cast<double>(part * (size() - 1)) * kTurns;
  gatherGBs_ = milliseconds > 0 ? received / (milliseconds * 1e-3) * 1e-9 : 0;
  return Status::ok();
}

} // namespace shardc::cuda
