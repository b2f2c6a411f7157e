// A placed plan that is ready to run: memory allocated, every op of every variant resolved,
// segments captured. Launching a segment looks nothing up and allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/Arenas.h"
#include "runtime/exec/Bind.h"
#include "runtime/exec/FaultHooks.h"
#include "runtime/exec/LaunchQueue.h"
#include "runtime/exec/ProductTarget.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/exec/RankPart.h"
#include "runtime/hal/Backend.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Variants.h"

namespace shardc::exec {

class Executable;

/// A word of each stream of a plan, 0 of those that it does not have; and one that says which
/// microbatch is under way, 0 where that is not reported.
using RankWords = std::array<uint32_t, plan::kStreamsMax + 1>;

struct ExecutableOptions {
  bool graphs = true; ///< captures segments; otherwise every op is enqueued separately
  /// Fills all memory outside cells with 0xff when a segment begins: a value that no cell passes on
  /// must not be read, and this exposes such a read.
  bool poisonBetweenSegments = false;
  /// Graph nodes that the host enqueues ahead; beyond them it waits before the next launch. 0:
  /// unlimited.
  int64_t nodesAhead = 0;
  /// Multiprocessor limit of products that overlap NCCL's kernels.
  ProductTarget productTarget;
  /// Streams write their progress, for progress().
  bool progress = false;
  /// If set: the ProgressWord of the channel that is being created, or 0.
  std::atomic<uint32_t> *making = nullptr;
  /// For each parameter, the number of updates in its moments minus that of the schedule
  /// (ParamRange); empty: 0.
  std::vector<int64_t> countOffsets;
  FaultHooks *faults = nullptr; ///< a test's; outlives the executable
  /// If set: is called once, after all ops are bound, before anything is captured or runs.
  std::function<Status(Executable &)> beforeCapture;
};

/// The memory that the ranks of a process have their state in, by rank.
using StateMemory = std::vector<std::unique_ptr<hal::Buffer>>;

/// Device memory in use, of all processes, after each part of an executable was created. All zero
/// if the device has no separate memory.
struct MemoryStages {
  int64_t total = 0;
  int64_t begin = 0; ///< the backend alone: contexts
  int64_t arenas = 0, channels = 0, workspaces = 0;
  int64_t end = 0; ///< memory of libraries, kernels, graphs
  /// Bytes of each, without its receive buffer.
  std::vector<std::pair<std::string, int64_t>> communicators;
  int64_t receiveBuffers = 0;    ///< bytes of receive buffers, in use after channels were created
  int64_t graphs = 0, nodes = 0; ///< that the first rank has captured
  double captureSeconds = 0;     ///< of all ranks of this process
  int64_t takenOver = 0;         ///< bytes of state that were there already, in `begin`
};

/// Seconds of the parts of an executable's creation.
struct SetUpSeconds {
  double memory = 0, communicators = 0, kernels = 0, graphs = 0;
};

/// Observes each op in a run op by op, after it has ended on all ranks of this process.
class OpObserver {
public:
  virtual ~OpObserver() = default;
  struct Position {
    uint32_t segment; ///< as Executable numbers them
    plan::SegmentInstance instance;
    hal::LaunchParams params;
    uint32_t op;
  };
  /// A status that is not ok ends the run. `op` is ignored before the segment.
  virtual Status beforeSegment(const Position &) { return Status::ok(); }
  virtual Status afterOp(const Position &position) = 0;
};

/// An object for each instance of a segment.
template <typename T> class ByInstance {
public:
  /// Null if there is none.
  T *find(const plan::SegmentInstance &key) const {
    for (const Entry &entry : entries_)
      if (entry.key == key)
        return entry.item.get();
    return nullptr;
  }
  T &add(const plan::SegmentInstance &key, std::unique_ptr<T> item) {
    entries_.push_back({key, std::move(item)});
    return *entries_.back().item;
  }

  struct Entry {
    plan::SegmentInstance key;
    std::unique_ptr<T> item;
  };
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

private:
  std::vector<Entry> entries_;
};

/// Ranks of one process may have several roles. Segments are numbered over all roles of the plan,
/// one role after the other: what runs one of them runs it on the ranks with its role.
class Executable {
public:
  /// `plan` is placed and verified, and must outlive the executable; so must the backend.
  /// InvalidInput if the plan is not for this backend, or if a kernel is missing or refuses its
  /// call; Exhausted if there is not enough memory. With `state`, which another plan of the job has
  /// left, it goes on with that; what is not state is made by the program's part for resumed runs.
  static Result<std::unique_ptr<Executable>> create(const plan::Plan &plan, hal::Backend &backend,
                                                    FindKernel findKernel,
                                                    const ExecutableOptions &options,
                                                    StateMemory state = {});
  ~Executable();
  /// Waits for all queued work, and takes the state away: the executable can only be destroyed.
  Result<StateMemory> takeState();

  const plan::Plan &plan() const { return plan_; }
  /// The role of this process' first rank.
  const plan::Role &role() const { return roleOf(0); }
  const plan::Role &roleOf(size_t rank) const { return plan_.roles[ranks_[rank]->role]; }
  uint32_t roleIndexOf(size_t rank) const { return ranks_[rank]->role; }
  /// Indices of the roles that ranks of this process have.
  const std::vector<uint32_t> &rolesHere() const { return rolesHere_; }
  /// The number of a role's segment, the segment with a number, and its role.
  uint32_t numberOf(uint32_t role, uint32_t segment) const { return firstOf_[role] + segment; }
  const plan::Segment &segment(uint32_t number) const { return *segments_[number].segment; }
  const plan::Role &roleOfSegment(uint32_t number) const {
    return plan_.roles[segments_[number].role];
  }
  uint32_t segmentCount() const { return static_cast<uint32_t>(segments_.size()); }
  /// The ranks of this process that run the segment.
  const std::vector<size_t> &ranksOf(uint32_t segment) const {
    return ranksOfRole_[segments_[segment].role];
  }
  /// The instance that runs for a microbatch of so many.
  plan::SegmentInstance instanceFor(uint32_t segment, int64_t microbatch, int64_t count) const {
    const Numbered &of = segments_[segment];
    return {of.variants.of(microbatch, count), of.segment->body ? microbatch % of.slots : 0};
  }
  hal::Backend &backend() { return backend_; }
  size_t rankCount() const { return ranks_.size(); } ///< of this process

  /// Waits until the queues of all ranks of this process have room for the segment's graphs.
  Status makeRoom(uint32_t segment, const plan::SegmentInstance &instance);
  /// The events that `launch` of an instance without a graph waits for: those of its earlier
  /// launches.
  std::vector<hal::Event *> awaitedByLaunch(uint32_t segment,
                                            const plan::SegmentInstance &instance);
  /// Enqueues a segment on all ranks of this process that have its role.
  Status launch(uint32_t segment, const plan::SegmentInstance &instance,
                const hal::LaunchParams &params);
  /// Enqueues a background segment on all these ranks, after all queued work. It ends
  /// before the segment that it names begins; nothing here waits for it. One at a time; but one
  /// that names a background segment is enqueued behind that one, and runs beside all work.
  Status launchBackground(uint32_t segment);
  /// True if no background segment is queued or running. Any thread may call it.
  bool isBackgroundDone() const;
  // Prepares all ranks of this process that have the segment's role to run it op by op. Call it
  // before the first op. Nothing but background segments may run on these ranks.
  /// Before the first op. Nothing of these ranks is running but background segments.
  Status prepareOps(uint32_t segment, const plan::SegmentInstance &instance,
                    const hal::LaunchParams &params);
  /// Enqueues one op, and lets `eventsOf` tell when it has ended.
  Status issueAlone(uint32_t segment, const plan::SegmentInstance &instance, size_t op);
  /// For each rank, the event after the op that `issueAlone` enqueued last on the stream.
  std::vector<hal::Event *> eventsOf(uint32_t segment, plan::StreamId stream) const;

  // The process' ranks, by index.
  int worldRank(size_t rank) const { return ranks_[rank]->device->rank(); }
  const Arenas &arenas(size_t rank) const { return *ranks_[rank]->arenas; }
  hal::Stream &computeStream(size_t rank) { return *ranks_[rank]->streams[0]; }
  hal::Device &device(size_t rank) { return *ranks_[rank]->device; }
  /// Scratch that a rank's kernels share, outside the plan's arenas.
  int64_t workspaceBytes(size_t rank) const {
    int64_t bytes = 0;
    for (const std::unique_ptr<hal::Buffer> &workspace : ranks_[rank]->workspaces)
      bytes += workspace ? workspace->bytes() : 0;
    return bytes;
  }
  /// Receive buffers for sums, also outside the plan's arenas.
  int64_t receiveBufferBytes(size_t rank) const;
  /// Channels whose memory is not registered although ddp.nccl_ub is on, since their sums are
  /// exchanged.
  const std::vector<std::string> &unregisteredChannels() const { return unregistered_; }
  /// The stages of memory use on the device of this process' first rank.
  const MemoryStages &memoryStages() const { return stages_; }
  const SetUpSeconds &setUpSeconds() const { return seconds_; }
  /// GB/s of the plan's largest all-gather, measured when its channel was created; 0: unknown.
  double measuredGatherGBs() const;
  /// Progress of a rank: ProgressWords with the numbers of ProgressMap, by stream. All
  /// zero without the option. Any thread may call it.
  RankWords progress(size_t rank) const;
  /// The bound segment, with the addresses of the first of its ranks; null for an instance that
  /// the program does not run, or a role that no rank of this process has.
  const BoundSegment *bound(uint32_t segment, const plan::SegmentInstance &instance) const;
  /// Calls fn(bound, segment) for each bound instance of all segments.
  template <typename Fn> void forEachBound(const Fn &fn) const {
    for (uint32_t s = 0; s < bound_.size(); ++s)
      for (const auto &[key, bound] : bound_[s])
        fn(*bound, *segments_[s].segment);
  }
  /// One op of the segment as a rank runs it; `call` receives its call.
  BoundOp boundOp(size_t rank, uint32_t segment, const plan::SegmentInstance &instance, size_t op,
                  kernels::Call &call) const;
  /// Copies device memory of a rank to the host; waits for all queued work.
  Status read(size_t rank, const void *from, int64_t bytes, void *to);
  /// Reads bytes while other work is queued that does not write them.
  Status readBeside(size_t rank, const void *from, int64_t bytes, void *to);
  /// Copies from the host to device memory of a rank, after all queued work.
  Status write(size_t rank, void *to, int64_t bytes, const void *from);

private:
  /// A rank's own of a bound segment.
  struct Instance {
    BoundSegment *bound = nullptr;      ///< of bound_: all ranks of the process share it
    std::optional<RankPart> part;       ///< not set where the process has one rank
    std::unique_ptr<hal::Mark> nearEnd; ///< in the graph; null for small graphs
    std::unique_ptr<hal::Graph> graph;
    std::unique_ptr<hal::Event> ended; ///< of the last launch without a graph
    int64_t launches = 0;
  };
  struct Rank {
    hal::Device *device = nullptr;
    uint32_t role = 0;
    std::optional<Arenas> arenas;
    std::array<std::unique_ptr<hal::Stream>, plan::kStreamsMax>
        streams; ///< of the plan, the rest null
    std::array<std::unique_ptr<hal::Buffer>, plan::kStreamsMax> workspaces;
    /// For each stream, an event for each of its ops that others wait for, for the widest segment.
    /// Segments may follow each other before events are reached, so streams do not share events.
    std::array<std::vector<std::unique_ptr<hal::Event>>, plan::kStreamsMax> events;
    std::array<std::unique_ptr<hal::Event>, plan::kStreamsMax> streamEvents; ///< fork and joins
    std::vector<ByInstance<Instance>> segments; ///< by number; none of other roles
    std::unique_ptr<hal::Buffer> staging;       ///< for reads and writes
    std::unique_ptr<hal::Stream> reading;       ///< for readBeside(); null before the first one
    std::unique_ptr<hal::Event> isRead;
    std::unique_ptr<hal::Buffer> words; ///< of progress; null without it
    uint32_t microbatch = 0;            ///< what the last of these words becomes
    /// Events of background segments that segments of the program wait for, and of those after
    /// them.
    std::unique_ptr<hal::Event> backgroundBegin, backgroundEnd, copiedOn;
    std::optional<LaunchQueue> queue;
  };
  struct Communicator {
    plan::ChannelId channel;
    std::vector<int> members;
    std::unique_ptr<hal::Channel> handle;
  };
  /// Bytes outside all cells.
  struct Gap {
    plan::Arena arena;
    int64_t begin, end;
  };

  Executable(const plan::Plan &plan, hal::Backend &backend, const ExecutableOptions &options);

  Status checkPlan() const;
  Status createRanks(StateMemory state);
  Status createChannels();
  Result<std::unique_ptr<hal::Channel>> createChannel(const Communicator &made, uint32_t firstUse);
  hal::SharedMemory lend(const Rank &rank, int64_t bytes) const;
  std::optional<plan::Arena> arenaOfCounted(plan::ChannelId channel) const;
  hal::ChannelDesc describe(const Communicator &made);
  hal::Channel *findChannel(int worldRank, plan::ChannelId channel) const;
  Status createChannelsOf(plan::ChannelId channel, uint32_t number);
  Status bindAll(FindKernel findKernel);
  Status bindRank(size_t rank, FindKernel findKernel);
  Status bindInstance(const BindContext &context, uint32_t segment,
                      const plan::SegmentInstance &key, Rank &rank);
  Status createWorkspaces(Rank &rank);
  BoundOp opOf(const Instance &instance, size_t op, kernels::Call &call) const;
  Status createEvents(Rank &rank);
  static Status needStaging(Rank &rank, int64_t bytes);
  Status captureAll();
  Result<std::unique_ptr<hal::Graph>> capture(Rank &rank, const plan::Segment &segment,
                                              const Instance &instance);
  /// A background segment must have ended before this segment, which waits for it.
  Status joinBackground(uint32_t segment);

  Status callFaultHooks(Rank &rank, const plan::Segment &segment, const Instance &instance,
                        int64_t step);
  /// Sets the parameters that kernels read from their calls if these are enqueued one by one.
  static void setParams(const BoundSegment &bound, const hal::LaunchParams &params);
  Status issue(Rank &rank, const plan::Segment &segment, const Instance &instance);
  Status issueOp(Rank &rank, const Instance &instance, const BoundOp &op);
  Status issueMarked(Rank &rank, const Instance &instance, const BoundOp &op, uint32_t number,
                     bool endsUnit);
  Status issueTogether(Rank &rank, const plan::Segment &segment, const Instance &instance,
                       std::span<const uint32_t> gathers);
  uint32_t *wordOf(Rank &rank, size_t word) const;
  Status markMicrobatch(Rank &rank, const plan::Segment &segment, int64_t microbatch);
  Status issuePoison(Rank &rank);
  static std::vector<Gap> findGaps(const plan::Role &role, const GroupIndices &indices);

  /// A segment by its number.
  struct Numbered {
    const plan::Segment *segment;
    uint32_t role;
    plan::VariantTable variants;
    int64_t slots; ///< plan::slotsOf
    /// A running background segment ends before it.
    bool isJoined = false;
  };

  const plan::Plan &plan_;
  const bool isPipeline_;
  hal::Backend &backend_;
  ExecutableOptions options_;
  std::vector<std::vector<std::string>> labels_; ///< by segment's number and op
  ProgressMap map_;
  std::vector<Communicator> communicators_;
  /// For each segment and instance, everything that is equal for all ranks of this process.
  std::vector<ByInstance<BoundSegment>> bound_;
  std::vector<Numbered> segments_;
  std::vector<uint32_t> firstOf_; ///< by role: the number of its first segment
  std::vector<uint32_t> rolesHere_;
  std::vector<std::vector<size_t>> ranksOfRole_; ///< by role: ranks of this process
  std::vector<std::unique_ptr<Rank>> ranks_;
  MemoryStages stages_;
  SetUpSeconds seconds_;
  std::vector<std::string> unregistered_;
};

} // namespace shardc::exec
