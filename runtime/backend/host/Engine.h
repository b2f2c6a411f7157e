// The pool that executes the queues of all ranks' streams. A lane is a sequence of items with a
// current position. A worker follows one lane until an item must wait, so a chain of work stays
// on one core and ops of one stream need no synchronisation between them. Workers share one
// mutex, and use it only at events with waiters, collectives, and ends of lanes. If no lane can
// run and every host thread that queues work waits, the run is deadlocked, which is reported at
// once.
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

/// How far an event has come. Tickets only grow: records of a stream, or launches of a graph.
struct EventState {
  std::atomic<uint64_t> done{0};
  std::atomic<uint32_t> waiterCount{0}; ///< lanes and host threads that wait
  std::vector<Lane *> waiters;          ///< under the engine's mutex
  bool isTimed = false;
  std::atomic<int64_t> reachedNs{0}; ///< the last record's, if it is timed
};

/// The state in which members of a channel meet.
struct ChannelState {
  std::string name;
  std::vector<int> members; ///< world ranks in group order
  std::vector<Lane *> arrived;
  std::vector<const hal::Collective *> descs;
  int arrivedCount = 0;
  int partsDone = 0;
  /// Set if the other members are in other processes: it executes collectives, and the lane pauses
  /// meanwhile.
  RemoteMember *remote = nullptr;
};

/// One thing in a queue.
struct Item {
  enum Kind : uint8_t { Kernel, Copy, Fill, Word, Collective, Record, Wait, Launch } kind = Kernel;
  uint8_t fillValue = 0;
  int member = 0; ///< of the channel
  const char *label = "";
  kernels::KernelFn kernel = nullptr;
  kernels::Call *call = nullptr;
  const kernels::Call *sharedCall = nullptr; ///< instead of `call`, with what the rank has of it
  const hal::OwnPart *own = nullptr;
  void *to = nullptr;
  const void *from = nullptr;
  int64_t bytes = 0;
  EventState *event = nullptr;
  uint64_t ticket = 0; ///< 0 in graphs: the number of the launch
  uint32_t word = 0;
  ChannelState *channel = nullptr;
  hal::Collective collective;
  GraphState *graph = nullptr;
  hal::LaunchParams params;
};

/// A sequence of items that are executed in order: a stream, or one stream's part of a graph.
struct Lane {
  enum State : uint8_t { Idle, Ready, Running, Away, Blocked };
  /// How far the item at the cursor has come.
  enum Phase : uint8_t { Start, Part, PartDone, Done };

  int rank = 0;
  std::string name;
  State state = Idle;
  Phase phase = Start;
  const Item *at = nullptr; ///< item being executed or waited in
  int64_t beganNs = 0;      ///< when that began, while a trace is taken

  // For graphs: the items, which are fixed at capture.
  GraphState *graph = nullptr;
  std::vector<Item> items;
  size_t cursor = 0;

  // For streams: a ring of items that the host writes.
  std::vector<Item> ring;
  uint64_t head = 0, tail = 0;
  Item current;
  bool hasCurrent = false;
};

/// A waiting host thread. It counts as waiting only until its condition becomes true, however long
/// it takes to wake.
struct HostWait {
  std::thread::id thread = std::this_thread::get_id();
  virtual bool isOver() const = 0; ///< under the engine's mutex

protected:
  ~HostWait() = default;
};

/// A captured graph: its lanes start together and it ends when all have ended.
struct GraphState {
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<EventState>> events;
  Lane *parent = nullptr; ///< the stream that it was launched on
  size_t lanesLeft = 0;
  uint64_t launches = 0;
  hal::LaunchParams params;
};

/// Nanoseconds of a monotonic clock.
int64_t nowNs();

class Engine {
public:
  explicit Engine(const Options &options);
  ~Engine();
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;
  /// Starts the workers; call once. Exhausted if the system has too few threads.
  Status startThreads();

  /// Makes a stream's lane known; it lives as long as the engine.
  Lane *addStream(int rank, std::string name);
  /// Makes room for the lanes of a graph, so that launching it allocates nothing.
  void reserveLanes(size_t count);
  void releaseLanes(size_t count);

  /// Queues an item on a stream; blocks while its ring is full.
  Status submit(Lane &stream, const Item &item);
  /// Blocks until the event has reached the ticket, or returns why it never will.
  Status wait(EventState &event, uint64_t ticket);
  /// An event and one of its tickets.
  struct Awaited {
    EventState *event;
    uint64_t ticket;
    bool isOver() const { return event->done.load(std::memory_order_acquire) >= ticket; }
  };
  /// Blocks until one of the events has reached its ticket, or returns why none ever will.
  Status waitForAny(std::span<const Awaited> events);
  /// Blocks until nothing is queued.
  Status waitIdle();

  /// A remote member whose collectives end early if this engine fails; until it is removed.
  void addRemote(RemoteMember *remote);
  void removeRemote(RemoteMember *remote);
  /// A lane's remote collective has ended.
  void finishRemote(Lane &lane, Status status);
  /// Ends all that is queued with this status, as a failed kernel does.
  void abort(Status status);

  /// Records kernels, copies, fills and collectives from here on; nothing is running.
  void startTrace();
  /// The recorded spans, in order of begin; nothing may be running.
  std::vector<trace::Span> stopTrace();

private:
  void work(uint64_t seed);
  Lane *take(std::unique_lock<std::mutex> &lock, uint64_t &random);
  void run(Lane &lane, std::unique_lock<std::mutex> &lock);
  const Item *next(Lane &lane, std::unique_lock<std::mutex> &lock);
  bool execute(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool runKernel(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  static void call(const Lane &lane, const Item &item);
  void record(const Lane &lane, const Item &item);
  void recordEvent(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool waitInLane(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool goRemote(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool meet(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  bool arrive(Lane &lane, const Item &item);
  bool isWorthSharing(const ChannelState &channel) const;
  void finishTogether(ChannelState &channel, Lane &self);
  bool launchGraph(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock);
  void endLane(Lane &lane);
  static bool widen(Lane &stream);
  template <typename Ready> Status waitOnHost(std::unique_lock<std::mutex> &lock, Ready ready);
  void noteDriver();
  bool canHostGoOn() const;

  // All of these hold the mutex.
  void makeReady(Lane &lane);
  void park(Lane &lane);
  void failIfStuck();
  void fail(Status status);
  std::string describeQueues() const;
  void describeLane(const Lane &lane, std::string &out) const;

  const bool stress_;
  const uint64_t seed_;   ///< of schedules under stress
  const size_t ringSize_; ///< of streams, at first
  const int workerCount_;
  std::mutex mutex_;
  std::condition_variable workers_; ///< work is ready
  std::condition_variable host_;    ///< something that a host thread waits for may have happened

  std::vector<Lane *> ready_; ///< ring of lanes that may run; capacity covers every lane
  size_t readyHead_ = 0, readySize_ = 0;
  std::atomic<size_t> readyCount_{0}; ///< readySize_, to look at without the mutex
  size_t lanesMax_ = 0;
  int active_ = 0;   ///< lanes that are ready, running or away
  int blocked_ = 0;  ///< lanes that wait
  int running_ = 0;  ///< workers that are inside a lane, and lanes that are away
  int sleeping_ = 0; ///< workers that need waking
  int spinning_ = 0; ///< workers that look for work without the mutex
  std::vector<const HostWait *> hostWaits_;
  std::vector<std::thread::id> drivers_; ///< host threads that have queued something
  bool stopping_ = false;
  std::atomic<bool> failed_{false};
  Status failure_;

  std::atomic<bool> isTracing_{false};
  std::mutex traceMutex_; ///< for the spans
  std::vector<trace::Span> spans_;

  std::vector<std::unique_ptr<Lane>> streams_;
  std::vector<RemoteMember *> remotes_;
  std::vector<std::thread> threads_;
};

} // namespace shardc::host
