// Creates a channel, all of it before any capture: 1. the id, 2. a communicator for each member,
// shared with no other channel, 3. registration of shared memory, as windows if possible, else
// locally, else not at all, 4. ways into the memory of other members, 5. warm-ups. The members make
// all choices together: one that registers while another does not would wait for it forever.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/backend/cuda/Agreement.h"
#include "runtime/backend/cuda/Check.h"
#include "runtime/backend/cuda/CommunicatorWatch.h"
#include "runtime/backend/cuda/Config.h"
#include "runtime/backend/cuda/CudaChannel.h"
#include "runtime/backend/cuda/CudaMemory.h"
#include "runtime/backend/cuda/GroupCall.h"
#include "runtime/base/Reports.h"

namespace shardc::cuda {
namespace {

/// Bytes that a warm-up moves for each member.
constexpr int64_t kWarmUpBytes = 4096;

/// Device memory that a setup step needs for a moment: lent if that has room, since memory of its
/// own beside all arenas may be what a plan that fits has not left.
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
  for (std::unique_ptr<Member> &member : members_) {
    for (const hal::SharedMemory &shared : desc().shared)
      if (shared.rank == member->rank && shared.bytes > 0)
        member->shared = &shared;
    for (const hal::SharedMemory &lent : desc().lent)
      if (lent.rank == member->rank)
        member->lent = &lent;
  }
  ASSIGN_OR_RETURN(ncclUniqueId id, agreeOnId(options));
  ncclConfig_t config = configOf(desc(), options);
  GroupCall group;
  RETURN_IF_CUDA_ERROR(group.begin());
  for (std::unique_ptr<Member> &member : members_) {
    RETURN_IF_CUDA_ERROR(cudaSetDevice(member->device->device));
    RETURN_IF_CUDA_ERROR(
        ncclCommInitRankConfig(&member->communicator, size(), id, member->index, &config));
  }
  RETURN_IF_CUDA_ERROR(group.end());
  for (std::unique_ptr<Member> &member : members_)
    watch_.add(member->communicator, desc().name);
  if (meetsBeforeTransfers())
    RETURN_IF_ERROR(connectMeetings(options));
  RETURN_IF_ERROR(registerShared(options));
  RETURN_IF_ERROR(connectPeers(options));
  RETURN_IF_ERROR(warmUp());
  return measureGather();
}

/// Small transfers take one multiprocessor themselves.
bool CudaChannel::meetsBeforeTransfers() const {
  using Kind = hal::CollectiveKind;
  return size() == 2 && (isUsedFor(Kind::Send, false) || isUsedFor(Kind::Recv, false)) &&
         (desc().uses.empty() || bytesMaxOf(desc()) > kSmallBytes);
}

Status CudaChannel::connectMeetings(const Options &options) {
  ncclConfig_t config = configOf(desc(), options);
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

Result<ncclUniqueId> CudaChannel::agreeOnId(const Options &options) {
  ncclUniqueId id = {};
  int root = desc().members.front();
  if (memberOf(root))
    RETURN_IF_CUDA_ERROR(ncclGetUniqueId(&id));
  if (static_cast<int>(members_.size()) == size())
    return id;
  if (!options.rendezvous)
    return makeStatus(StatusCode::InvalidInput,
                      "channel '{}' has members in other processes and no connection to them",
                      desc().name);
  // Channels of several groups have the same name; their roots distinguish them.
  std::string mine = memberOf(root) ? std::string(id.internal, sizeof id.internal) : "";
  ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      options.rendezvous->gather(fmt::format("id of '{}' of rank {}", desc().name, root),
                                 desc().members, mine));
  const std::string &bytes = all.front();
  if (bytes.size() != sizeof id.internal)
    return makeStatus(StatusCode::Internal, "channel '{}': an id of {} bytes instead of {}",
                      desc().name, bytes.size(), sizeof id.internal);
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  return id;
}

/// True if `mine` is true in every process of the channel. Votes by NCCL would make connections
/// that nothing else needs.
Result<bool> CudaChannel::allAgree(const Options &options, std::string_view what, bool mine) {
  if (static_cast<int>(members_.size()) == size())
    return mine;
  ASSIGN_OR_RETURN(std::vector<std::string> votes,
                   options.rendezvous->gather(fmt::format("{} of '{}' of rank {}", what,
                                                          desc().name, desc().members.front()),
                                              desc().members, mine ? "yes" : "no"));
  return std::ranges::all_of(votes, [](const std::string &vote) { return vote == "yes"; });
}

namespace {

bool refuses(const Options &options, Service what) {
  return options.refusals && options.refusals->refuses(what);
}

} // namespace

Status CudaChannel::registerShared(const Options &options) {
  RegistrationSteps steps;
  steps.canTryWindows = [&] {
    return !refuses(options, Service::Windows) &&
           std::ranges::all_of(members_, [](const auto &member) { return member->shared; });
  };
  steps.windows = [&] { return registerWindows(); };
  steps.locally = [&] { return !refuses(options, Service::Buffers) && registerLocally(); };
  steps.dropLocal = [&] { dropLocal(); };
  steps.allAgree = [&](std::string_view what, bool mine) { return allAgree(options, what, mine); };
  hal::Registration wanted = desc().registration;
  Result<hal::Registration> agreed = agreeOnRegistration(desc().name, wanted, steps);
  if (!agreed.isOk()) { // members that continue may wait for this one, and it for them at its end
    if (options.failed)
      options.failed(agreed.status());
    return agreed.status();
  }
  hal::Registration reached = *agreed;
  if (wanted == hal::Registration::Windows && reached != wanted && options.tell)
    options.tell(makeReport(report::NoWindows, desc().name));
  if (wanted != hal::Registration::Nothing && reached == hal::Registration::Nothing && options.tell)
    options.tell(makeReport(report::NoRegistration, desc().name));
  return Status::ok();
}

/// As many as NCCL's kernels may take, whose place these have. A power of two: a block's share of
/// rows then begins where lines of memory do; between H200s 24 blocks are slower than 16.
int CudaChannel::peerBlocks() const {
  constexpr int kBlocks = 32;
  int32_t limit = desc().multiprocessors;
  return static_cast<int>(
      std::bit_floor(static_cast<unsigned>(limit > 0 ? std::min(limit, kBlocks) : kBlocks)));
}

/// All members reach the memory of all others, or counted rows go by NCCL on all of them.
Status CudaChannel::connectPeers(const Options &options) {
  if (desc().reached.empty())
    return Status::ok();
  bool isInOneProcess = static_cast<int>(members_.size()) == size();
  std::string mine;
  for (std::unique_ptr<Member> &member : members_) {
    hal::SharedMemory memory = {member->rank, nullptr, 0};
    for (const hal::SharedMemory &reached : desc().reached)
      if (reached.rank == member->rank)
        memory = reached;
    member->peers =
        std::make_unique<Peers>(*member->device, memory, member->index, size(), peerBlocks());
    ASSIGN_OR_RETURN(std::string card,
                     member->peers->describe(fmt::format("peers of channel '{}'", desc().name)));
    mine += card;
  }
  std::vector<std::string> described(static_cast<size_t>(size()), mine);
  if (!isInOneProcess) {
    ASSIGN_OR_RETURN(described,
                     options.rendezvous->gather(fmt::format("memory of '{}' of rank {}",
                                                            desc().name, desc().members.front()),
                                                desc().members, mine));
  }
  Status reached = refuses(options, Service::Peers)
                       ? Status(StatusCode::Unavailable, "a test refuses it")
                       : Status::ok();
  for (std::unique_ptr<Member> &member : members_)
    if (reached.isOk())
      reached = member->peers->open(described);
  cudaGetLastError(); // what was refused is no error of the run
  ASSIGN_OR_RETURN(bool all, allAgree(options, "peers", reached.isOk()));
  for (std::unique_ptr<Member> &member : members_) {
    if (!all) {
      member->peers.reset();
      continue;
    }
    RETURN_IF_ERROR(member->peers->fill());
    watch_.addStop(member->peers->stop());
  }
  if (!reached.isOk() && !reached.message().empty() && options.tell)
    options.tell(makeReport(report::NoPeers, desc().name, reached.message()));
  return Status::ok();
}

/// Part of a group call, since members wait for each other. A window stays with the communicator
/// until that is destroyed.
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
  // Where the driver or the links do not allow it NCCL gives no error, and no window either.
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

/// NCCL takes a buffer that one member registered for one that all did: its first collective would
/// not end.
void CudaChannel::dropLocal() {
  for (std::unique_ptr<Member> &member : members_)
    if (member->localHandle)
      static_cast<void>(
          ncclCommDeregister(member->communicator, std::exchange(member->localHandle, nullptr)));
}

bool CudaChannel::isUsedFor(hal::CollectiveKind kind, bool anyOrder) const {
  const std::vector<hal::ChannelUse> &uses = desc().uses;
  return uses.empty() || std::any_of(uses.begin(), uses.end(), [&](const hal::ChannelUse &use) {
           return use.kind == kind && use.anyOrder == anyOrder;
         });
}

/// Sums in order are sums of parts that members send each other.
bool CudaChannel::sendsParts() const {
  using Kind = hal::CollectiveKind;
  constexpr Kind kKinds[] = {Kind::ReduceScatter, Kind::AllReduce, Kind::Send,
                             Kind::Recv,          Kind::AllToAll,  Kind::Shift};
  return std::ranges::any_of(kKinds, [&](Kind kind) { return isUsedFor(kind, false); });
}

int64_t CudaChannel::sharedBytes() const {
  const hal::SharedMemory *shared = members_.front()->shared;
  return shared ? shared->bytes : 0;
}

/// Every form of collective that `issue` will use, twice: NCCL makes connections and the copy
/// engines' flags at the first use, which a capture must not be, and after exactly one use of the
/// copy engines a captured one would not wait. What is not used gets no connections, which take
/// megabytes each. Between shared buffers where they have room, since registered ones are made
/// known to peers at the first use too; they hold nothing yet.
Status CudaChannel::warmUp() {
  using Kind = hal::CollectiveKind;
  bool allReduces = isUsedFor(Kind::AllReduce, true) || isUsedFor(Kind::AllReduceMax, false);
  // NCCL has another algorithm for other sizes.
  int64_t part = kWarmUpBytes, whole = part * size(), most = allReduces ? bytesMaxOf(desc()) : 0;
  int64_t needed = std::max(2 * whole, most);
  bool isShared = sharedBytes() >= needed;
  // Plans sum between no windows, so what NCCL would do there needs no getting ready.
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
    if (!wanted)
      return Status::ok();
    GroupCall group;
    RETURN_IF_CUDA_ERROR(group.begin());
    for (size_t i = 0; i < members_.size(); ++i)
      RETURN_IF_CUDA_ERROR(queue(*members_[i], *scratch[i]));
    RETURN_IF_CUDA_ERROR(group.end());
    return Status::ok();
  };
  auto bytes = static_cast<size_t>(part);
  for (int turn = 0; turn < 2; ++turn) {
    RETURN_IF_ERROR(eachMember(true, [&](Member &member, Scratch &memory) {
      std::byte *base = baseOf(isShared, member, memory);
      return ncclAllGather(base + member.index * part, base, bytes, ncclUint8, member.communicator,
                           memory.stream());
    }));
    RETURN_IF_ERROR(
        eachMember(isUsedFor(Kind::ReduceScatter, true), [&](Member &member, Scratch &memory) {
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
    RETURN_IF_ERROR(eachMember(meetsBeforeTransfers(), [&](Member &member, Scratch &memory) {
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

/// As the plan's largest gather goes, whatever it goes by: between shared buffers where there are
/// some, on all members at a time. The buffers hold nothing yet.
Status CudaChannel::measureGather() {
  constexpr int kTurns = 4;
  int64_t most = 0; // without a gather, nothing to measure
  for (const hal::ChannelUse &use : desc().uses)
    if (use.kind == hal::CollectiveKind::AllGather)
      most = std::max(most, use.bytes);
  std::vector<std::unique_ptr<Scratch>> scratch;
  int64_t part = most / size() / 256 * 256;
  bool isShared = sharedBytes() >= part * size();
  if (part < kSmallBytes)
    return Status::ok(); // that would be about latency
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
