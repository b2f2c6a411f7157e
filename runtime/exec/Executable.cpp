// Sets up an executable: memory, communicators, bound ops and captured graphs, in this order.
// Issue.cpp enqueues the segments later.
#include "runtime/exec/Executable.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/base/ProgressWord.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Factors.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {
namespace {

/// Transfers have priority over compute, since other ranks wait for them.
hal::StreamUse useOf(const plan::Plan &plan, plan::StreamId stream) {
  bool isOfChannel = std::ranges::count(plan.channels, stream, &plan::Channel::stream) > 0;
  return isOfChannel && stream != plan::kComputeStream ? hal::StreamUse::Transfer
                                                       : hal::StreamUse::Compute;
}

} // namespace

/// Numbers the segments of all roles consecutively: segment `s` of role `r` has the number
/// `firstOf_[r] + s`.
Executable::Executable(const plan::Plan &plan, hal::Backend &backend,
                       const ExecutableOptions &options)
    : plan_(plan), isPipeline_(plan::isPipeline(plan)), backend_(backend), options_(options),
      map_(plan), ranksOfRole_(plan.roles.size()) {
  for (uint32_t r = 0; r < plan.roles.size(); ++r) {
    firstOf_.push_back(static_cast<uint32_t>(segments_.size()));
    for (const plan::Segment &segment : plan.roles[r].segments)
      segments_.push_back(
          {&segment, r, plan::VariantTable(segment), plan::slotsOf(plan.roles[r], segment)});
  }
}

Executable::~Executable() {
  // Queued work still uses this memory. A failure of that work was already reported to the thread
  // that waited for it.
  static_cast<void>(backend_.synchronize());
  // Graphs use communicators, and communicators use memory that was registered with them, so they
  // are destroyed in this order.
  for (std::unique_ptr<Rank> &rank : ranks_)
    rank->segments.clear();
  communicators_.clear();
}

/// The order of the stages is fixed. Channels need the arenas, which NCCL registers; kernels need
/// the channels; and capture needs every address. After each stage the device memory in use is
/// noted, which tells what each stage allocated.
Result<std::unique_ptr<Executable>> Executable::create(const plan::Plan &plan,
                                                       hal::Backend &backend, FindKernel findKernel,
                                                       const ExecutableOptions &options,
                                                       StateMemory state) {
  std::unique_ptr<Executable> executable(new Executable(plan, backend, options));
  RETURN_IF_ERROR(executable->checkPlan());
  hal::Device &device = *backend.devices().front();
  MemoryStages &stages = executable->stages_;
  SetUpSeconds &seconds = executable->seconds_;
  auto since = std::chrono::steady_clock::now();
  auto lap = [&since] {
    auto before = std::exchange(since, std::chrono::steady_clock::now());
    return std::chrono::duration<double>(since - before).count();
  };
  stages.total = device.memory().total;
  stages.begin = device.memory().used;
  RETURN_IF_ERROR(executable->createRanks(std::move(state)));
  stages.arenas = device.memory().used;
  seconds.memory = lap();
  RETURN_IF_ERROR(executable->createChannels());
  stages.channels = device.memory().used;
  seconds.communicators = lap();
  RETURN_IF_ERROR(executable->bindAll(findKernel));
  stages.workspaces = device.memory().used;
  if (options.beforeCapture)
    RETURN_IF_ERROR(options.beforeCapture(*executable));
  seconds.kernels = lap();
  if (options.graphs)
    RETURN_IF_ERROR(executable->captureAll());
  seconds.graphs = lap();
  stages.end = device.memory().used;
  return executable;
}

Status Executable::checkPlan() const {
  if (plan_.level != plan::Level::Placed)
    return makeStatus(report::PlanCannotRun, "the plan is {}, not placed",
                      plan::toString(plan_.level));
  if (plan_.worldSize() != backend_.worldSize())
    return makeStatus(report::PlanCannotRun, "the plan is for {} ranks, the backend has {}",
                      plan_.worldSize(), backend_.worldSize());
  return Status::ok();
}

Result<StateMemory> Executable::takeState() {
  RETURN_IF_ERROR(backend_.synchronize());
  StateMemory state;
  for (std::unique_ptr<Rank> &rank : ranks_)
    state.push_back(rank->arenas->takeState());
  return state;
}

Status Executable::createRanks(StateMemory state) {
  state.resize(backend_.devices().size());
  stages_.takenOver = state.front() ? state.front()->bytes() : 0;
  for (hal::Device *device : backend_.devices()) {
    auto rank = std::make_unique<Rank>();
    rank->device = device;
    rank->role = exec::roleOf(plan_, device->rank());
    if (ranksOfRole_[rank->role].empty())
      rolesHere_.push_back(rank->role);
    ranksOfRole_[rank->role].push_back(ranks_.size());
    ASSIGN_OR_RETURN(rank->arenas,
                     Arenas::allocate(plan_.roles[rank->role], *device,
                                      GroupIndices(plan_, device->rank()), plan_.job.ddp.ncclUb,
                                      std::move(state[ranks_.size()])));
    for (size_t s = 0; s < plan_.streams.size(); ++s) {
      hal::StreamUse use = useOf(plan_, static_cast<plan::StreamId>(s));
      ASSIGN_OR_RETURN(rank->streams[s], device->createStream(plan_.streams[s].name, use));
      ASSIGN_OR_RETURN(rank->streamEvents[s], device->createEvent());
    }
    ASSIGN_OR_RETURN(rank->backgroundBegin, device->createEvent());
    ASSIGN_OR_RETURN(rank->backgroundEnd, device->createEvent());
    ASSIGN_OR_RETURN(rank->copiedOn, device->createEvent());
    ASSIGN_OR_RETURN(rank->queue, LaunchQueue::create(*device, options_.nodesAhead));
    if (options_.progress) {
      constexpr int64_t kBytes = sizeof(RankWords);
      ASSIGN_OR_RETURN(rank->words, device->allocate(hal::MemoryKind::Host, kBytes, "progress"));
      std::memset(rank->words->data(), 0, kBytes);
    }
    ranks_.push_back(std::move(rank));
  }
  return Status::ok();
}

RankWords Executable::progress(size_t rank) const {
  RankWords words{};
  if (const std::unique_ptr<hal::Buffer> &buffer = ranks_[rank]->words)
    for (size_t s = 0; s < words.size(); ++s)
      words[s] = std::atomic_ref(reinterpret_cast<uint32_t *>(buffer->data())[s])
                     .load(std::memory_order_relaxed);
  return words;
}

Status Executable::createChannels() {
  std::vector<std::optional<uint32_t>> firstUse(plan_.channels.size());
  for (const Numbered &of : segments_)
    for (const plan::Op &op : of.segment->ops)
      if (op.channel != plan::kNoChannel && !firstUse[static_cast<size_t>(op.channel)])
        firstUse[static_cast<size_t>(op.channel)] =
            map_.numberOf(*of.segment, static_cast<size_t>(&op - of.segment->ops.data()));
  for (plan::ChannelId channel : plan::channelOrder(plan_, rolesHere_))
    RETURN_IF_ERROR(createChannelsOf(channel, *firstUse[static_cast<size_t>(channel)]));
  return Status::ok();
}

Status Executable::createChannelsOf(plan::ChannelId channel, uint32_t number) {
  for (const std::unique_ptr<Rank> &rank : ranks_) {
    int worldRank = rank->device->rank();
    Communicator made{channel, channelMembers(plan_, channel, worldRank), nullptr};
    bool isOne = std::ranges::find(made.members, worldRank) != made.members.end();
    if (!isOne || findChannel(worldRank, channel))
      continue;
    hal::Device &first = *backend_.devices().front();
    int64_t before = first.memory().used;
    ASSIGN_OR_RETURN(made.handle, createChannel(made, number));
    bool isMember =
        std::find(made.members.begin(), made.members.end(), first.rank()) != made.members.end();
    int64_t receiveBuffer = isMember ? made.handle->receiveBufferBytes() : 0;
    stages_.receiveBuffers += receiveBuffer;
    if (int64_t bytes = first.memory().used - before - receiveBuffer; bytes > 0)
      stages_.communicators.emplace_back(made.handle->desc().name, bytes);
    communicators_.push_back(std::move(made));
  }
  return Status::ok();
}

Result<std::unique_ptr<hal::Channel>> Executable::createChannel(const Communicator &made,
                                                                uint32_t firstUse) {
  if (options_.faults)
    options_.faults->beforeChannel(ranks_.front()->device->rank());
  if (options_.making)
    options_.making->store(ProgressWord::making(firstUse), std::memory_order_relaxed);
  auto channel = backend_.createChannel(describe(made));
  if (options_.making && channel.isOk()) // on failure, keeps the word, which names the channel
    options_.making->store(0, std::memory_order_relaxed);
  return channel;
}

hal::SharedMemory Executable::lend(const Rank &rank, int64_t bytes) const {
  const Arenas &arenas = *rank.arenas;
  bool isWork =
      stages_.takenOver > 0 || arenas.bytes(plan::Arena::Work) > arenas.bytes(plan::Arena::State);
  plan::Arena largest = isWork ? plan::Arena::Work : plan::Arena::State;
  if (arenas.bytes(largest) < bytes)
    largest = plan::Arena::Sym;
  return {rank.device->rank(), arenas.base(largest), arenas.bytes(largest)};
}

std::optional<plan::Arena> Executable::arenaOfCounted(plan::ChannelId channel) const {
  std::optional<plan::Arena> arena;
  for (const plan::Role &role : plan_.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops) {
        if (op.channel != channel || !plan::leavesRowsOut(op))
          continue;
        plan::Arena of = segment.values[op.results[0]].place.arena;
        if (arena && *arena != of)
          return std::nullopt;
        arena = of;
      }
  return arena;
}

hal::ChannelDesc Executable::describe(const Communicator &made) {
  hal::ChannelDesc desc;
  const plan::Channel &channel = plan_.channels[made.channel];
  desc.name = fmt::format("{} {}", plan_.groups[channel.group].name, channel.name);
  desc.multiprocessors = channel.multiprocessors;
  desc.members = made.members;
  bool touchesShared = false, hasWindows = false, exchanges = false;
  for (const Numbered &of : segments_)
    for (const plan::Op &op : of.segment->ops)
      if (op.channel == made.channel) {
        const plan::Segment &segment = *of.segment;
        CollectiveKind kind = plan::collectiveKindOf(op);
        const plan::Value &in = segment.values[(op.operands.empty() ? op.results : op.operands)[0]],
                          &out = segment.values[(op.results.empty() ? op.operands : op.results)[0]];
        desc.uses.push_back({kind, std::max(in.type.bytes(), out.type.bytes()),
                             isSum(kind) && plan::sumsInAnyOrder(plan_, op)});
        touchesShared |= in.place.arena == plan::Arena::Sym || out.place.arena == plan::Arena::Sym;
        hasWindows |= kind == CollectiveKind::AllGather && channel.transport == plan::Transport::Ce;
        exchanges |= plan::isExchanged(plan_, segment, op) || isBySends(kind);
      }
  for (const plan::Role &role : plan_.roles)
    desc.receiveBufferBytes =
        std::max(desc.receiveBufferBytes, plan::receiveBufferBytes(plan_, role, made.channel));
  if (touchesShared && plan_.job.ddp.ncclUb)
    for (const std::unique_ptr<Rank> &rank : ranks_)
      if (std::find(made.members.begin(), made.members.end(), rank->device->rank()) !=
          made.members.end())
        desc.shared.push_back({rank->device->rank(), rank->arenas->base(plan::Arena::Sym),
                               rank->arenas->bytes(plan::Arena::Sym)});
  if (std::optional<plan::Arena> arena = arenaOfCounted(made.channel))
    for (const std::unique_ptr<Rank> &rank : ranks_)
      if (std::ranges::find(made.members, rank->device->rank()) != made.members.end())
        desc.reached.push_back(
            {rank->device->rank(), rank->arenas->base(*arena), rank->arenas->bytes(*arena)});
  int64_t most = 0;
  for (const hal::ChannelUse &use : desc.uses)
    most = std::max(most, use.bytes);
  for (const std::unique_ptr<Rank> &rank : ranks_)
    desc.lent.push_back(lend(*rank, most));
  // Windows are only requested for copy engines, since other collectives are slower between windows
  // than between locally registered buffers. Channels that exchange are not registered: sends from
  // registered buffers into unregistered receive buffers hung in captured graphs (docs/adr/0007).
  bool mayHaveWindows = !plan_.job.ddp.disableSymmetricRegistration;
  if (touchesShared && exchanges && plan_.job.ddp.ncclUb)
    unregistered_.push_back(desc.name);
  if (touchesShared && !exchanges && plan_.job.ddp.ncclUb)
    desc.registration =
        hasWindows && mayHaveWindows ? hal::Registration::Windows : hal::Registration::Local;
  return desc;
}

int64_t Executable::receiveBufferBytes(size_t rank) const {
  int64_t bytes = 0;
  for (const Communicator &made : communicators_)
    if (std::find(made.members.begin(), made.members.end(), worldRank(rank)) != made.members.end())
      bytes += made.handle->receiveBufferBytes();
  return bytes;
}

double Executable::measuredGatherGBs() const {
  double best = 0;
  for (const Communicator &made : communicators_)
    best = std::max(best, made.handle->measuredGatherGBs());
  return best;
}

hal::Channel *Executable::findChannel(int worldRank, plan::ChannelId channel) const {
  for (const Communicator &made : communicators_)
    if (made.channel == channel &&
        std::find(made.members.begin(), made.members.end(), worldRank) != made.members.end())
      return made.handle.get();
  return nullptr;
}

Status Executable::bindAll(FindKernel findKernel) {
  for (const Numbered &of : segments_)
    labels_.push_back(plan::opLabels(plan_, *of.segment));
  bound_.resize(segments_.size());
  for (size_t r = 0; r < ranks_.size(); ++r)
    RETURN_IF_ERROR(bindRank(r, findKernel));
  return Status::ok();
}

Status Executable::bindRank(size_t index, FindKernel findKernel) {
  Rank &rank = *ranks_[index];
  int worldRank = rank.device->rank();
  BindContext context{
      plan_,
      plan_.roles[rank.role],
      *rank.arenas,
      findKernel,
      [this, worldRank](plan::ChannelId channel) { return findChannel(worldRank, channel); },
      options_.countOffsets,
      backend_.kernelContext()};
  rank.segments.resize(segments_.size());
  std::vector<std::vector<plan::SegmentInstance>> instances =
      plan::instancesOfProgram(plan_.roles[rank.role]);
  for (uint32_t s = 0; s < instances.size(); ++s)
    for (const plan::SegmentInstance &key : instances[s]) {
      context.microbatch = key.slot;
      RETURN_IF_ERROR(bindInstance(context, numberOf(rank.role, s), key, rank));
    }
  RETURN_IF_ERROR(createWorkspaces(rank));
  return createEvents(rank);
}

Status Executable::bindInstance(const BindContext &context, uint32_t segment,
                                const plan::SegmentInstance &key, Rank &rank) {
  const plan::Segment &what = *segments_[segment].segment;
  ASSIGN_OR_RETURN(BoundSegment bound, bindSegment(context, what, key.variant, labels_[segment]));
  BoundSegment *shared = bound_[segment].find(key);
  auto instance = std::make_unique<Instance>();
  if (shared) {
    instance->part = takePart(*shared, std::move(bound));
  } else {
    limitProducts(plan_, what, options_.productTarget, bound);
    numberOwnParts(bound);
    shared = &bound_[segment].add(key, std::make_unique<BoundSegment>(std::move(bound)));
    if (ranksOfRole_[rank.role].size() > 1)
      instance->part = partOf(*shared, *shared);
  }
  instance->bound = shared;
  rank.segments[segment].add(key, std::move(instance));
  return Status::ok();
}

Status Executable::createWorkspaces(Rank &rank) {
  std::array<size_t, plan::kStreamsMax> bytes{};
  auto forEachCall = [&](auto visit) {
    for (auto &variants : rank.segments)
      for (const auto &[key, instance] : variants)
        for (size_t i = 0; i < instance->bound->ops.size(); ++i)
          if (BoundOp &op = instance->bound->ops[i]; op.kind == BoundOp::Kernel)
            visit(*instance, op, op.stream);
  };
  forEachCall([&](Instance &, BoundOp &op, size_t stream) {
    if (op.kernel->workspaceBytes)
      bytes[stream] = std::max(bytes[stream], op.kernel->workspaceBytes(*op.call));
  });
  for (size_t s = 0; s < bytes.size(); ++s)
    if (bytes[s] > 0) {
      std::string name = fmt::format("workspace {}", plan_.streams[s].name);
      ASSIGN_OR_RETURN(
          rank.workspaces[s],
          rank.device->allocate(hal::MemoryKind::Work, static_cast<int64_t>(bytes[s]), name));
    }
  forEachCall([&](Instance &instance, BoundOp &op, size_t stream) {
    void *workspace = rank.workspaces[stream] ? rank.workspaces[stream]->data() : nullptr;
    (instance.part ? instance.part->calls[op.own].workspace : op.call->workspace) = workspace;
    op.call->workspaceBytes = bytes[stream];
  });
  return Status::ok();
}

Status Executable::createEvents(Rank &rank) {
  std::array<size_t, plan::kStreamsMax> most{};
  for (const auto &variants : rank.segments)
    for (const auto &[key, instance] : variants) {
      std::array<size_t, plan::kStreamsMax> counts{};
      for (const BoundOp &op : instance->bound->ops)
        counts[op.stream] += op.isAwaited;
      for (size_t s = 0; s < counts.size(); ++s)
        most[s] = std::max(most[s], counts[s]);
    }
  for (size_t s = 0; s < most.size(); ++s)
    for (size_t i = 0; i < most[s]; ++i) {
      ASSIGN_OR_RETURN(auto event, rank.device->createEvent());
      rank.events[s].push_back(std::move(event));
    }
  return Status::ok();
}

const BoundSegment *Executable::bound(uint32_t segment,
                                      const plan::SegmentInstance &instance) const {
  return bound_[segment].find(instance);
}

BoundOp Executable::opOf(const Instance &instance, size_t op, kernels::Call &call) const {
  const BoundOp &shared = instance.bound->ops[op];
  return instance.part ? opWithPart(shared, *instance.part, call) : shared;
}

BoundOp Executable::boundOp(size_t rank, uint32_t segment, const plan::SegmentInstance &instance,
                            size_t op, kernels::Call &call) const {
  return opOf(*ranks_[rank]->segments[segment].find(instance), op, call);
}

Status Executable::read(size_t rank, const void *from, int64_t bytes, void *to) {
  Rank &r = *ranks_[rank];
  RETURN_IF_ERROR(needStaging(r, bytes));
  RETURN_IF_ERROR(r.streams[0]->copy(r.staging->data(), from, bytes, "copy to the host"));
  RETURN_IF_ERROR(backend_.synchronize());
  std::memcpy(to, r.staging->data(), static_cast<size_t>(bytes));
  return Status::ok();
}

Status Executable::needStaging(Rank &rank, int64_t bytes) {
  if (!rank.staging || rank.staging->bytes() < bytes) {
    ASSIGN_OR_RETURN(rank.staging, rank.device->allocate(hal::MemoryKind::Host, bytes, "staging"));
  }
  return Status::ok();
}

/// Copies from device memory on a stream of its own, which does not wait for the compute stream.
/// The caller must know that the bytes are complete. The copy goes through pinned staging memory.
Status Executable::readBeside(size_t rank, const void *from, int64_t bytes, void *to) {
  Rank &r = *ranks_[rank];
  if (!r.reading) {
    ASSIGN_OR_RETURN(r.reading, r.device->createStream("reading", hal::StreamUse::Compute));
    ASSIGN_OR_RETURN(r.isRead, r.device->createEvent());
  }
  RETURN_IF_ERROR(needStaging(r, bytes));
  RETURN_IF_ERROR(r.reading->copy(r.staging->data(), from, bytes, "copy to the host"));
  RETURN_IF_ERROR(r.reading->record(*r.isRead));
  RETURN_IF_ERROR(r.isRead->synchronize());
  std::memcpy(to, r.staging->data(), static_cast<size_t>(bytes));
  return Status::ok();
}

Status Executable::write(size_t rank, void *to, int64_t bytes, const void *from) {
  Rank &r = *ranks_[rank];
  RETURN_IF_ERROR(backend_.synchronize());
  RETURN_IF_ERROR(needStaging(r, bytes));
  std::memcpy(r.staging->data(), from, static_cast<size_t>(bytes));
  RETURN_IF_ERROR(r.streams[0]->copy(to, r.staging->data(), bytes, "copy from the host"));
  return backend_.synchronize();
}

} // namespace shardc::exec
