// A placed plan made ready to run: memory allocated, every op of every variant resolved, segments
// captured. Launching a segment looks nothing up and allocates nothing.
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
#include "runtime/exec/Fault.h"
#include "runtime/exec/LaunchWindow.h"
#include "runtime/exec/ProductTarget.h"
#include "runtime/exec/ProgressMap.h"
#include "runtime/hal/Backend.h"
#include "runtime/plan/Plan.h"

namespace shardc::exec {

class Executable;

struct ExecutableOptions {
  bool graphs = true; ///< captures segments; without it every op is queued by itself
  /// Fills everything that no cell holds with 0xff when a segment begins: what is not handed on by
  /// a cell must not be read, and shows if it is.
  bool poisonBetweenSegments = false;
  /// Nodes of graphs that the host queues ahead; beyond them it waits before it launches. 0: as
  /// many as come.
  int64_t nodesAhead = 0;
  /// How products are cut that run beside NCCL's kernels.
  ProductTarget productTarget;
  /// Streams write how far they have come, for progress().
  bool progress = false;
  /// Set: is the ProgressWord of the channel that is being made, and 0 where none is.
  std::atomic<uint32_t> *making = nullptr;
  /// What the moments of each parameter count more than the schedule does (ParamRange); empty: 0.
  std::vector<int64_t> countOffsets;
  Fault fault; ///< planted by a test
  /// Set: is called when all ops are bound and nothing has been captured or has run.
  std::function<Status(Executable &)> beforeCapture;
};

/// Device memory in use, everybody's, when each part of an executable had been made. All zero where
/// the device has none of its own.
struct MemoryStages {
  int64_t total = 0;
  int64_t begin = 0; ///< the backend alone: contexts
  int64_t arenas = 0, channels = 0, workspaces = 0;
  int64_t end = 0; ///< libraries' own, kernels, graphs
  /// Bytes that each took, without its landing buffer.
  std::vector<std::pair<std::string, int64_t>> communicators;
  int64_t landings = 0; ///< bytes of landing buffers, in use when channels had been made
};

/// Told of each op in a run op by op, after it has ended on all ranks of this process.
class OpObserver {
public:
  virtual ~OpObserver() = default;
  struct Position {
    uint32_t segment;
    plan::Variant variant;
    hal::LaunchParams params;
    uint32_t op;
  };
  /// A status that is not ok ends the run. `op` counts for nothing before the segment.
  virtual Status beforeSegment(const Position &) { return Status::ok(); }
  virtual Status afterOp(const Position &position) = 0;
};

class Executable {
public:
  /// `plan` is placed and verified, and outlives the executable; so does the backend. InvalidInput
  /// if the plan is not for this backend, a kernel is missing or refuses; Exhausted if memory does
  /// not suffice.
  static Result<std::unique_ptr<Executable>> create(const plan::Plan &plan, hal::Backend &backend,
                                                    FindKernel findKernel,
                                                    const ExecutableOptions &options);
  ~Executable();

  const plan::Plan &plan() const { return plan_; }
  const plan::Role &role() const { return role_; }
  hal::Backend &backend() { return backend_; }
  size_t rankCount() const { return ranks_.size(); } ///< of this process

  /// Waits until the segment's graphs find room in the queues of all ranks of this process.
  Status makeRoom(uint32_t segment, plan::Variant variant);
  /// Queues a segment on all ranks of this process.
  Status launch(uint32_t segment, plan::Variant variant, const hal::LaunchParams &params);
  /// Queues a background segment on all ranks of this process, behind all that is queued. It ends
  /// before the segment that it names begins; nothing here waits for it. One at a time.
  Status launchBackground(uint32_t segment);
  /// True if no background segment is queued or running. May be asked by any thread.
  bool isBackgroundDone() const;
  /// Runs a segment op by op: each op has ended on all ranks before the next one begins.
  Status runOpByOp(uint32_t segment, plan::Variant variant, const hal::LaunchParams &params,
                   OpObserver *observer);

  // Of the process' ranks, by index.
  int worldRank(size_t rank) const { return ranks_[rank]->device->rank(); }
  const Arenas &arenas(size_t rank) const { return *ranks_[rank]->arenas; }
  hal::Stream &computeStream(size_t rank) { return *ranks_[rank]->streams[0]; }
  hal::Device &device(size_t rank) { return *ranks_[rank]->device; }
  /// Scratch that a rank's kernels share beside the plan's arenas.
  int64_t workspaceBytes(size_t rank) const {
    int64_t bytes = 0;
    for (const std::unique_ptr<hal::Buffer> &workspace : ranks_[rank]->workspaces)
      bytes += workspace ? workspace->bytes() : 0;
    return bytes;
  }
  /// What sums over ranks are formed from, beside the plan's arenas too.
  int64_t landingBytes(size_t rank) const;
  /// Channels whose memory is not registered, though ddp.nccl_ub is on, since their sums are
  /// exchanged.
  const std::vector<std::string> &unregisteredChannels() const { return unregistered_; }
  /// Of the device of this process' first rank.
  const MemoryStages &memoryStages() const { return stages_; }
  /// GB/s in which the largest all-gather of the plan ran when its channel was made; 0: unknown.
  double measuredGatherGBs() const;
  /// How far a rank's streams have come: ProgressWords with the numbers of ProgressMap, by stream.
  /// All zero without the option. May be asked by any thread.
  std::array<uint32_t, plan::kStreamCount> progress(size_t rank) const;
  /// The segment as it is bound; null for a variant that the program does not take.
  const BoundSegment *bound(size_t rank, uint32_t segment, plan::Variant variant) const;
  /// Copies device memory of a rank to the host; waits for everything that is queued.
  Status read(size_t rank, const void *from, int64_t bytes, void *to);
  /// Copies from the host to device memory of a rank, after everything that is queued.
  Status write(size_t rank, void *to, int64_t bytes, const void *from);

private:
  static constexpr size_t kVariants = 4;
  struct Instance {
    BoundSegment bound;
    std::unique_ptr<hal::Mark> nearEnd; ///< in the graph; null for small ones
    std::unique_ptr<hal::Graph> graph;
    int64_t launches = 0;
  };
  struct Rank {
    hal::Device *device = nullptr;
    std::optional<Arenas> arenas;
    std::array<std::unique_ptr<hal::Stream>, plan::kStreamCount> streams;
    std::array<std::unique_ptr<hal::Buffer>, plan::kStreamCount> workspaces;
    std::vector<std::unique_ptr<hal::Event>>
        events; ///< one for each op that is awaited, of the widest segment
    std::array<std::unique_ptr<hal::Event>, plan::kStreamCount> streamEvents; ///< fork and joins
    std::vector<std::array<std::unique_ptr<Instance>, kVariants>> segments;
    std::unique_ptr<hal::Buffer> staging; ///< for read()
    std::unique_ptr<hal::Buffer> words;   ///< of progress; null without it
    std::unique_ptr<hal::Event> backgroundBegin, backgroundEnd;
    std::optional<LaunchWindow> window;
  };
  struct Communicator {
    int group;
    plan::Channel channel;
    std::vector<int> members;
    std::unique_ptr<hal::Channel> handle;
  };
  /// Bytes that hold no cell.
  struct Gap {
    plan::Arena arena;
    int64_t begin, end;
  };

  Executable(const plan::Plan &plan, hal::Backend &backend, const ExecutableOptions &options);

  Status checkPlan() const;
  Status createRanks();
  Status createChannels();
  Result<std::unique_ptr<hal::Channel>> createChannel(const Communicator &made, uint32_t firstUse);
  static hal::SharedMemory lend(const Rank &rank, int64_t bytes);
  hal::ChannelDesc describe(const Communicator &made);
  hal::Channel *findChannel(int worldRank, int group, plan::Channel channel) const;
  std::vector<plan::Variant> variantsOf(uint32_t segment) const;
  Status bindAll(FindKernel findKernel);
  Status bindRank(size_t rank, FindKernel findKernel);
  Status createWorkspaces(Rank &rank);
  Status createEvents(Rank &rank);
  Status captureAll();
  Result<std::unique_ptr<hal::Graph>> capture(Rank &rank, const plan::Segment &segment,
                                              const Instance &instance);
  /// The segment is one that a background segment has to have ended before: it waits for it.
  Status joinBackground(uint32_t segment);

  /// Plants the fault of a step before a segment's first collective, once.
  Status plantFault(Rank &rank, const plan::Segment &segment, const Instance &instance);
  Status issue(Rank &rank, const plan::Segment &segment, const Instance &instance);
  Status issueOp(Rank &rank, const BoundOp &op);
  Status issueMarked(Rank &rank, const BoundOp &op, uint32_t number, bool endsUnit);
  uint32_t *wordOf(Rank &rank, plan::Stream stream) const;
  Status issuePoison(Rank &rank);
  std::vector<Gap> findGaps(int64_t dp) const;

  const plan::Plan &plan_;
  const plan::Role &role_;
  hal::Backend &backend_;
  ExecutableOptions options_;
  std::vector<std::vector<std::string>> labels_; ///< by segment and op
  ProgressMap map_;
  std::vector<Communicator> communicators_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  MemoryStages stages_;
  std::vector<std::string> unregistered_;
  bool hasPlanted_ = false;
  uint32_t joinBefore_ = plan::kNone; ///< a background segment that may be under way ends before it
};

} // namespace shardc::exec
