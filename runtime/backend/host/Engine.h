// The thread pool that executes the streams of all ranks. A lane is a sequence of items with a
// current position. A worker follows one lane until an item must wait, so a chain of work stays on
// one core and consecutive ops of a stream need no synchronisation. Workers share one mutex, and
// lock it only at events with waiters, at collectives, and at the ends of lanes. If no lane can run
// and every host thread that queues work waits, the engine reports a deadlock at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/backend/host/Options.h"
#include "runtime/hal/Backend.h"
#include "runtime/trace/Span.h"

namespace shardc::host {

struct Lane;
struct GraphState;
class RemoteMember;

/// Progress of an event. Tickets increase: they number the records of a stream's event, or the
/// launches of a graph.
struct EventState {
  std::atomic<uint64_t> done{0};
  std::atomic<uint32_t> waiterCount{0}; ///< number of waiting lanes and host threads
  std::vector<Lane *> waiters;          ///< guarded by the engine's mutex
  bool isTimed = false;
  std::atomic<int64_t> reachedNs{0}; ///< time of the last record, if the event is timed
};

/// The state of a collective whose members arrive one by one.
struct ChannelState {
  std::string name;
  std::vector<int> members; ///< world ranks in group order
  std::vector<Lane *> arrived;
  std::vector<const hal::Collective *> descs;
  int arrivedCount = 0;
  int partsDone = 0;
  /// Set if the other members are in other processes. It then executes the collectives, and the
  /// lane pauses meanwhile.
  RemoteMember *remote = nullptr;
};

/// One entry of a queue.
struct Item {
  enum Kind : uint8_t { Kernel, Copy, Fill, Word, Collective, Record, Wait, Launch } kind = Kernel;
  uint8_t fillValue = 0;
  int member = 0; ///< index in the channel
  const char *label = "";
  kernels::KernelFn kernel = nullptr;
  kernels::Call *call = nullptr;
  const kernels::Call *sharedCall = nullptr; ///< instead of `call`; `own` has the rank's own part
  const hal::OwnPart *own = nullptr;
  void *to = nullptr;
  const void *from = nullptr;
  int64_t bytes = 0;
  EventState *event = nullptr;
  uint64_t ticket = 0; ///< number of the record; 0 in graphs, which use the number of the launch
  uint32_t word = 0;
  ChannelState *channel = nullptr;
  hal::Collective collective;
  GraphState *graph = nullptr;
  hal::LaunchParams params;
};

/// A sequence of items that are executed in order: a stream, or one stream's part of a graph.
struct Lane {
  enum State : uint8_t { Idle, Ready, Running, Away, Blocked };
  /// Progress of the item at the cursor.
  enum Phase : uint8_t { Start, Part, PartDone, Done };

  int rank = 0;
  std::string name;
  State state = Idle;
  Phase phase = Start;
  const Item *at = nullptr; ///< the item that is being executed or that waits
  int64_t beganNs = 0;      ///< its start time, if a trace is recorded

  // Only for graphs: the items, fixed at capture.
  GraphState *graph = nullptr;
  std::vector<Item> items;
  size_t cursor = 0;

  // Only for streams: a ring of items that the host fills.
  std::vector<Item> ring;
  uint64_t head = 0, tail = 0;
  Item current;
  bool hasCurrent = false;
};

/// A waiting host thread. It counts as waiting only until its condition becomes true, even if it
/// wakes later.
struct HostWait {
  std::thread::id thread = std::this_thread::get_id();
  virtual bool isOver() const = 0; ///< called with the engine's mutex

protected:
  ~HostWait() = default;
};

/// A captured graph. Its lanes start together, and it ends when all of them have ended.
struct GraphState {
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<EventState>> events;
  Lane *parent = nullptr; ///< the stream on which it was launched
  size_t lanesLeft = 0;
  uint64_t launches = 0;
  hal::LaunchParams params;
};

/// Nanoseconds of a monotonic clock.
int64_t nowNs();

/// One engine executes all ranks of a process. Any thread may queue work; items of one stream are
/// executed in order.
class Engine {
public:
  explicit Engine(const Options &options);
  ~Engine();
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;
  /// Starts the workers; call it once. Exhausted if the system cannot create enough threads.
  Status startThreads();

  /// Creates the lane of a stream, which lives as long as the engine.
  Lane *addStream(int rank, std::string name);
  /// Reserves memory for the lanes of a graph, so that a launch does not allocate.
  void reserveLanes(size_t count);
  void releaseLanes(size_t count);

  /// Queues an item on a stream; blocks while its ring is full.
  Status submit(Lane &stream, const Item &item);
  /// Blocks until the event has reached the ticket, or returns the reason why it cannot.
  Status wait(EventState &event, uint64_t ticket);
  /// An event and one of its tickets.
  struct Awaited {
    EventState *event;
    uint64_t ticket;
    bool isOver() const { return event->done.load(std::memory_order_acquire) >= ticket; }
  };
  /// Blocks until one of the events has reached its ticket, or returns the reason why none can.
  Status waitForAny(std::span<const Awaited> events);
  /// Blocks until all queued work has ended.
  Status waitIdle();

  /// Registers a remote member whose collectives are cancelled if this engine fails.
  void addRemote(RemoteMember *remote);
  void removeRemote(RemoteMember *remote);
  /// Continues a lane whose remote collective has ended.
  void finishRemote(Lane &lane, Status status);
  /// Fails all queued work with this status, as a failed kernel does.
  void abort(Status status);

  /// Starts to record kernels, copies, fills and collectives. Nothing may be running.
  void startTrace();
  /// The recorded spans, sorted by begin. Nothing may be running.
  std::vector<trace::Span> stopTrace();

private:
  void work(uint64_t seed);
  /// Returns the next ready lane, or null when the engine stops. In stress mode, it is a random
  /// one, to find plans that depend on an order. A worker polls for a short time before it sleeps,
  /// since waking a thread costs more than most items.
  Lane *take(std::unique_lock<std::mutex> &lock, uint64_t &random);
  /// Executes items of a lane until it waits or ends. The mutex is held on entry and on return.
  void run(Lane &lane, std::unique_lock<std::mutex> &lock);
  /// The next item to execute. Null if the lane has ended; then the mutex is held.
  const Item *next(Lane &lane, std::unique_lock<std::mutex> &lock);
  /// Call it without the mutex. Returns true, without the mutex, if the item is done. Returns
  /// false, with the mutex held, if the lane waits or has gone back to the queue.
  bool execute(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool runKernel(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  /// Calls the kernel. A shared call is copied first, since other ranks read it at the same time.
  static void call(const Lane &lane, const Item &item);
  void record(const Lane &lane, const Item &item);
  void recordEvent(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool waitInLane(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  /// Hands the collective to the network. The lane continues when finishRemote is called. Until
  /// then it counts as running, so that nobody frees memory to which the network writes.
  bool goRemote(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool meet(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  /// True if all members have arrived. If false, the lane is parked or the engine has failed.
  bool arrive(Lane &lane, const Item &item);
  bool isWorthSharing(const ChannelState &channel) const;
  void finishTogether(ChannelState &channel, Lane &self);
  /// Starts all lanes of a graph and parks the launching lane, which continues after the last of
  /// them has ended. True if the graph has no lanes.
  bool launchGraph(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  void endLane(Lane &lane);
  /// Doubles the stream's ring; false if it already has the maximum size.
  static bool widen(Lane &stream);
  template <typename Ready> Status waitOnHost(std::unique_lock<std::mutex> &lock, Ready ready);
  void noteDriver();
  /// Whether a host thread that queues work can continue: it is not waiting, or its condition (a
  /// slot in a ring, an event) has become true, even if the thread has not woken yet. It may then
  /// queue more work. Threads that only wait never queue work.
  bool canHostGoOn() const;

  // The caller of each of these holds the mutex.
  void makeReady(Lane &lane);
  void park(Lane &lane);
  /// Reports a deadlock: work is left, none of it can run, and no host thread can queue more.
  void failIfStuck();
  void fail(Status status);
  /// Describes the lanes that have work. A stream that runs a graph is replaced by the lanes of
  /// this graph.
  std::string describeQueues() const;
  void describeLane(const Lane &lane, std::string &out) const;

  const bool stress_;
  const uint64_t seed_;   ///< seed of the schedule in stress mode
  const size_t ringSize_; ///< initial size of streams' rings
  const int workerCount_;
  std::mutex mutex_;
  std::condition_variable workers_; ///< signalled when work is ready
  std::condition_variable host_;    ///< signalled when a host thread may continue

  std::vector<Lane *> ready_; ///< ring of lanes that may run, with capacity for all lanes
  size_t readyHead_ = 0, readySize_ = 0;
  std::atomic<size_t> readyCount_{0}; ///< copy of readySize_ for reads without the mutex
  size_t lanesMax_ = 0;
  int active_ = 0;   ///< lanes that are ready, running or away
  int blocked_ = 0;  ///< lanes that wait
  int running_ = 0;  ///< workers that execute a lane, and lanes that are away
  int sleeping_ = 0; ///< workers that must be woken
  int spinning_ = 0; ///< workers that poll for work without the mutex
  std::vector<const HostWait *> hostWaits_;
  std::vector<std::thread::id> drivers_; ///< host threads that have queued work
  bool stopping_ = false;
  std::atomic<bool> failed_{false};
  Status failure_;

  std::atomic<bool> isTracing_{false};
  std::mutex traceMutex_; ///< guards the spans
  std::vector<trace::Span> spans_;

  std::vector<std::unique_ptr<Lane>> streams_;
  std::vector<RemoteMember *> remotes_;
  std::vector<std::thread> threads_;
};

} // namespace shardc::host
