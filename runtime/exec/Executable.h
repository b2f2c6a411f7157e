// A placed plan that is ready to run: memory is allocated, every op of every variant is resolved,
// and segments are captured. Launching a segment looks up nothing and allocates nothing.
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

/// Progress words of a rank: one per stream of the plan (0 for streams that it lacks), and one with
/// the current microbatch (0 if that is not reported).
using RankWords = std::array<uint32_t, plan::kStreamsMax + 1>;

/// What a run asks for, in addition to the plan.
struct ExecutableOptions {
  bool graphs = true; ///< captures segments; otherwise every op is enqueued separately
  /// Fills all memory outside of cells with 0xff when a segment begins. This exposes reads of
  /// values that no cell passes on.
  bool poisonBetweenSegments = false;
  /// Graph nodes that the host may enqueue ahead of execution. Beyond this limit, it waits before
  /// the next launch. 0: no limit.
  int64_t nodesAhead = 0;
  /// The limit on multiprocessors for products that overlap NCCL's kernels.
  ProductTarget productTarget;
  /// Whether streams write progress words, for progress().
  bool progress = false;
  /// If set, receives the ProgressWord of the channel that is being created, or 0.
  std::atomic<uint32_t> *making = nullptr;
  /// For each parameter, the number of updates in its moments minus the number in the schedule
  /// (ParamRange). Empty: all 0.
  std::vector<int64_t> countOffsets;
  FaultHooks *faults = nullptr; ///< hooks of a test; must outlive the executable
  /// If set, called once, after all ops are bound and before anything is captured or executed.
  std::function<Status(Executable &)> beforeCapture;
};

/// The state memory of the ranks of a process, by rank.
using StateMemory = std::vector<std::unique_ptr<hal::Buffer>>;

/// Device memory in use by all processes after each part of an executable was created. All zero if
/// the device has no separate memory.
struct MemoryStages {
  int64_t total = 0;
  int64_t begin = 0; ///< before the executable: contexts of the backend
  int64_t arenas = 0, channels = 0, workspaces = 0;
  int64_t end = 0; ///< including memory of libraries, kernels and graphs
  /// Bytes of each communicator, without its receive buffer.
  std::vector<std::pair<std::string, int64_t>> communicators;
  int64_t receiveBuffers = 0;    ///< bytes, allocated when channels are created
  int64_t graphs = 0, nodes = 0; ///< captured by the first rank
  double captureSeconds = 0;     ///< seconds of all ranks of this process together
  int64_t takenOver = 0;         ///< bytes of state that were taken over; part of `begin`
};

/// Seconds that each part of an executable's creation took.
struct SetUpSeconds {
  double memory = 0, communicators = 0, kernels = 0, graphs = 0;
};

/// Observes a run op by op: it is called for each op after the op has ended on all ranks of this
/// process.
class OpObserver {
public:
  virtual ~OpObserver() = default;
  struct Position {
    uint32_t segment; ///< number of the segment in the Executable
    plan::SegmentInstance instance;
    hal::LaunchParams params;
    uint32_t op;
  };
  /// Called before a segment; `op` is ignored. An error status ends the run.
  virtual Status beforeSegment(const Position &) { return Status::ok(); }
  virtual Status afterOp(const Position &position) = 0;
};

/// One object per instance of a segment.
template <typename T> class ByInstance {
public:
  /// The object of this instance; null if there is none.
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

/// Executes a plan on the ranks of this process, which may have several roles. Segments are
/// numbered over all roles of the plan, one role after the other. A function with a segment number
/// acts on the ranks that have the segment's role.
class Executable {
public:
  /// Creates the executable of a placed and verified plan. Plan and backend must outlive it.
  /// InvalidInput if the plan is not for this backend, or if a kernel is missing or refuses its
  /// call; Exhausted if there is not enough memory. `state`, if given, is the state memory of
  /// another plan of the job, which this one continues. The rest is then initialised by the part of
  /// the program for resumed runs.
  static Result<std::unique_ptr<Executable>> create(const plan::Plan &plan, hal::Backend &backend,
                                                    FindKernel findKernel,
                                                    const ExecutableOptions &options,
                                                    StateMemory state = {});
  ~Executable();
  /// Waits for all queued work and hands over the state memory. Afterwards the executable can only
  /// be destroyed.
  Result<StateMemory> takeState();

  const plan::Plan &plan() const { return plan_; }
  /// The role of the first rank of this process.
  const plan::Role &role() const { return roleOf(0); }
  const plan::Role &roleOf(size_t rank) const { return plan_.roles[ranks_[rank]->role]; }
  uint32_t roleIndexOf(size_t rank) const { return ranks_[rank]->role; }
  /// Indices of the roles that ranks of this process have.
  const std::vector<uint32_t> &rolesHere() const { return rolesHere_; }
  /// Segment numbers: the number of a role's segment, the segment with a number, and its role.
  uint32_t numberOf(uint32_t role, uint32_t segment) const { return firstOf_[role] + segment; }
  const plan::Segment &segment(uint32_t number) const { return *segments_[number].segment; }
  const plan::Role &roleOfSegment(uint32_t number) const {
    return plan_.roles[segments_[number].role];
  }
  uint32_t segmentCount() const { return static_cast<uint32_t>(segments_.size()); }
  /// The ranks of this process that execute the segment.
  const std::vector<size_t> &ranksOf(uint32_t segment) const {
    return ranksOfRole_[segments_[segment].role];
  }
  /// The instance that executes microbatch `microbatch` of `count`.
  plan::SegmentInstance instanceFor(uint32_t segment, int64_t microbatch, int64_t count) const {
    const Numbered &of = segments_[segment];
    return {of.variants.of(microbatch, count), of.segment->body ? microbatch % of.slots : 0};
  }
  hal::Backend &backend() { return backend_; }
  size_t rankCount() const { return ranks_.size(); } ///< of this process

  /// Waits until the launch queues of all these ranks have room for the segment's graph.
  Status makeRoom(uint32_t segment, const plan::SegmentInstance &instance);
  /// The events for which `launch` of an instance without a graph waits: those of its earlier
  /// launches.
  std::vector<hal::Event *> awaitedByLaunch(uint32_t segment,
                                            const plan::SegmentInstance &instance);
  /// Enqueues a segment on all ranks of this process that have its role.
  Status launch(uint32_t segment, const plan::SegmentInstance &instance,
                const hal::LaunchParams &params);
  /// Enqueues a background segment after all queued work. The segment that it names in `before`
  /// waits for it; nothing else does. Only one may run at a time. But if `before` is itself a
  /// background segment, this one is enqueued after that one and runs concurrently with all other
  /// work.
  Status launchBackground(uint32_t segment);
  /// Whether no background segment is queued or running. Any thread may call it.
  bool isBackgroundDone() const;
  /// Prepares the ranks to execute the segment op by op. Call it before the first op. Only
  /// background segments may be running on these ranks.
  Status prepareOps(uint32_t segment, const plan::SegmentInstance &instance,
                    const hal::LaunchParams &params);
  /// Enqueues one op. `eventsOf` then tells when it has ended.
  Status issueAlone(uint32_t segment, const plan::SegmentInstance &instance, size_t op);
  /// For each rank, the event after the op that `issueAlone` enqueued last on the stream.
  std::vector<hal::Event *> eventsOf(uint32_t segment, plan::StreamId stream) const;

  // Access to the ranks of this process, by index.
  int worldRank(size_t rank) const { return ranks_[rank]->device->rank(); }
  const Arenas &arenas(size_t rank) const { return *ranks_[rank]->arenas; }
  hal::Stream &computeStream(size_t rank) { return *ranks_[rank]->streams[0]; }
  hal::Device &device(size_t rank) { return *ranks_[rank]->device; }
  /// Bytes of workspaces, which a rank's kernels share. They are outside of the plan's arenas.
  int64_t workspaceBytes(size_t rank) const {
    int64_t bytes = 0;
    for (const std::unique_ptr<hal::Buffer> &workspace : ranks_[rank]->workspaces)
      bytes += workspace ? workspace->bytes() : 0;
    return bytes;
  }
  /// Bytes of receive buffers for sums, which also are outside of the plan's arenas.
  int64_t receiveBufferBytes(size_t rank) const;
  /// Names of channels whose memory is not registered although ddp.nccl_ub is on, because they
  /// carry sums by exchange.
  const std::vector<std::string> &unregisteredChannels() const { return unregistered_; }
  /// Memory use on the device of this process' first rank, by stage of creation.
  const MemoryStages &memoryStages() const { return stages_; }
  const SetUpSeconds &setUpSeconds() const { return seconds_; }
  /// Bandwidth in GB/s of the plan's largest all-gather, measured when its channel was created; 0:
  /// unknown.
  double measuredGatherGBs() const;
  /// Progress words of a rank, with the op numbers of ProgressMap. All zero unless option
  /// `progress` is set. Any thread may call it.
  RankWords progress(size_t rank) const;
  /// The bound segment, with the addresses of the first rank that has its role. Null if the program
  /// does not run this instance or no rank of this process has the role.
  const BoundSegment *bound(uint32_t segment, const plan::SegmentInstance &instance) const;
  /// Calls fn(bound, segment) for each bound instance of all segments.
  template <typename Fn> void forEachBound(const Fn &fn) const {
    for (uint32_t s = 0; s < bound_.size(); ++s)
      for (const auto &[key, bound] : bound_[s])
        fn(*bound, *segments_[s].segment);
  }
  /// One op of the segment as a rank executes it. `call` receives its call.
  BoundOp boundOp(size_t rank, uint32_t segment, const plan::SegmentInstance &instance, size_t op,
                  kernels::Call &call) const;
  /// Copies device memory of a rank to the host; waits for all queued work.
  Status read(size_t rank, const void *from, int64_t bytes, void *to);
  /// Copies device memory of a rank to the host while other work is queued. That work must not
  /// write these bytes.
  Status readBeside(size_t rank, const void *from, int64_t bytes, void *to);
  /// Copies from the host to device memory of a rank, after all queued work.
  Status write(size_t rank, void *to, int64_t bytes, const void *from);

private:
  /// A rank's own part of a bound segment.
  struct Instance {
    BoundSegment *bound = nullptr;      ///< in bound_, shared by all ranks of the process
    std::optional<RankPart> part;       ///< not set if the process has one rank
    std::unique_ptr<hal::Mark> nearEnd; ///< mark near the end of the graph; null for small graphs
    std::unique_ptr<hal::Graph> graph;
    std::unique_ptr<hal::Event> ended; ///< recorded after the last launch without a graph
    int64_t launches = 0;
  };
  struct Rank {
    hal::Device *device = nullptr;
    uint32_t role = 0;
    std::optional<Arenas> arenas;
    std::array<std::unique_ptr<hal::Stream>, plan::kStreamsMax>
        streams; ///< null for streams that the plan lacks
    std::array<std::unique_ptr<hal::Buffer>, plan::kStreamsMax> workspaces;
    /// For each stream, events for its ops that others wait for, as many as any segment needs.
    /// Streams do not share events, since a segment may be enqueued before events of the previous
    /// one are reached.
    std::array<std::vector<std::unique_ptr<hal::Event>>, plan::kStreamsMax> events;
    std::array<std::unique_ptr<hal::Event>, plan::kStreamsMax> streamEvents; ///< fork and joins
    std::vector<ByInstance<Instance>> segments; ///< by number; empty for other roles
    std::unique_ptr<hal::Buffer> staging;       ///< host memory for reads and writes
    std::unique_ptr<hal::Stream> reading;       ///< for readBeside(); created on first use
    std::unique_ptr<hal::Event> isRead;
    std::unique_ptr<hal::Buffer> words; ///< host memory of progress words; null without them
    uint32_t microbatch = 0;            ///< value of the last word after the next write
    /// Events of background segments. backgroundEnd is what segments of the program wait for.
    /// copiedOn follows background segments that come after another one.
    std::unique_ptr<hal::Event> backgroundBegin, backgroundEnd, copiedOn;
    std::optional<LaunchQueue> queue;
  };
  struct Communicator {
    plan::ChannelId channel;
    std::vector<int> members;
    std::unique_ptr<hal::Channel> handle;
  };
  /// A range of bytes outside of all cells.
  struct Gap {
    plan::Arena arena;
    int64_t begin, end;
  };

  Executable(const plan::Plan &plan, hal::Backend &backend, const ExecutableOptions &options);

  Status checkPlan() const;
  /// Allocates the memory, streams and events of each rank of this process. A rank uses the state
  /// of an earlier executable if `state` has it, so that parameters survive a change of the plan
  /// without a copy.
  Status createRanks(StateMemory state);
  /// Creates channels in the plan's order, and the instances of each channel in the order of their
  /// ranks. Both orders are the same in all processes.
  Status createChannels();
  /// Creates a channel. The other members wait meanwhile. Progress words do not change, so option
  /// `making` receives the channel, for messages about ranks that wait.
  Result<std::unique_ptr<hal::Channel>> createChannel(const Communicator &made, uint32_t firstUse);
  /// Memory of at least `bytes` bytes that a channel may use temporarily. Registered memory is lent
  /// only if no other memory is large enough, since NCCL treats it differently. State that was
  /// taken over is not lent.
  hal::SharedMemory lend(const Rank &rank, int64_t bytes) const;
  /// The arena that contains the results of all exchanges of counted rows on the channel. It covers
  /// the ops of every role, since all members must decide alike. Nothing if the channel has no such
  /// results, or if they are in several arenas.
  std::optional<plan::Arena> arenaOfCounted(plan::ChannelId channel) const;
  /// Describes the channel to the backend: its members, memory and all uses.
  hal::ChannelDesc describe(const Communicator &made);
  hal::Channel *findChannel(int worldRank, plan::ChannelId channel) const;
  /// Creates the instances of a channel that have ranks of this process as members.
  Status createChannelsOf(plan::ChannelId channel, uint32_t number);
  Status bindAll(FindKernel findKernel);
  /// Binds each variant and each ring slot of each segment that the program of the rank launches.
  /// Other combinations never run and are not bound.
  Status bindRank(size_t rank, FindKernel findKernel);
  /// All ranks of a role share the bound segment of the first one. For the others, only the
  /// differences are stored.
  Status bindInstance(const BindContext &context, uint32_t segment,
                      const plan::SegmentInstance &key, Rank &rank);
  /// Creates one workspace per stream, of the largest size that its ops need. They can share it,
  /// since ops of one stream run one after the other.
  Status createWorkspaces(Rank &rank);
  /// The op with the addresses of this instance's rank, which may differ from those of the shared
  /// segment.
  BoundOp opOf(const Instance &instance, size_t op, kernels::Call &call) const;
  /// Creates as many events per stream as the largest variant needs. Variants share them, since
  /// segments do not overlap.
  Status createEvents(Rank &rank);
  static Status needStaging(Rank &rank, int64_t bytes);
  /// Captures one graph for each rank and instance of a segment. Large graphs also have a mark near
  /// their end, so that the host launches the next graph in time without filling the device's
  /// queue.
  Status captureAll();
  Result<std::unique_ptr<hal::Graph>> capture(Rank &rank, const plan::Segment &segment,
                                              const Instance &instance);
  /// Makes the segment wait for the background segments that must end before it.
  Status joinBackground(uint32_t segment);

  Status callFaultHooks(Rank &rank, const plan::Segment &segment, const Instance &instance,
                        int64_t step);
  /// Sets the launch parameters in calls that are enqueued one by one.
  static void setParams(const BoundSegment &bound, const hal::LaunchParams &params);
  /// Enqueues all ops of a segment. All streams start after the earlier work of the compute stream,
  /// and the compute stream continues after all of them, so segments do not overlap.
  Status issue(Rank &rank, const plan::Segment &segment, const Instance &instance);
  Status issueOp(Rank &rank, const Instance &instance, const BoundOp &op);
  /// Issues an op, with progress words before and after it if it is a collective, and after it if
  /// it is the last op of a unit.
  Status issueMarked(Rank &rank, const Instance &instance, const BoundOp &op, uint32_t number,
                     bool endsUnit);
  /// Issues several gathers as one piece of work, with progress words before and after them.
  Status issueTogether(Rank &rank, const plan::Segment &segment, const Instance &instance,
                       std::span<const uint32_t> gathers);
  uint32_t *wordOf(Rank &rank, size_t word) const;
  /// Writes the current microbatch, for pipelines, whose stages process different microbatches at
  /// the same time. The write is outside of graphs, since one graph serves many microbatches.
  Status markMicrobatch(Rank &rank, const plan::Segment &segment, int64_t microbatch);
  Status issuePoison(Rank &rank);
  /// The ranges of arenas work and sym that no cell of the rank occupies. Cells may share bytes,
  /// and their places differ between ranks.
  static std::vector<Gap> findGaps(const plan::Role &role, const GroupIndices &indices);

  /// The segment with a number.
  struct Numbered {
    const plan::Segment *segment;
    uint32_t role;
    plan::VariantTable variants;
    int64_t slots; ///< see plan::slotsOf
    /// Whether it must wait for a running background segment.
    bool isJoined = false;
  };

  const plan::Plan &plan_;
  const bool isPipeline_;
  hal::Backend &backend_;
  ExecutableOptions options_;
  std::vector<std::vector<std::string>> labels_; ///< by segment number and op
  ProgressMap map_;
  std::vector<Communicator> communicators_;
  /// For each segment and instance, the part that all ranks of this process share.
  std::vector<ByInstance<BoundSegment>> bound_;
  std::vector<Numbered> segments_;
  std::vector<uint32_t> firstOf_; ///< by role: number of its first segment
  std::vector<uint32_t> rolesHere_;
  std::vector<std::vector<size_t>> ranksOfRole_; ///< by role: indices of this process' ranks
  std::vector<std::unique_ptr<Rank>> ranks_;
  MemoryStages stages_;
  SetUpSeconds seconds_;
  std::vector<std::string> unregistered_;
};

} // namespace shardc::exec
