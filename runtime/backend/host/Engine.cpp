#include "runtime/backend/host/Engine.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "runtime/backend/host/Remote.h"
#include "runtime/base/Thread.h"

namespace shardc::host {
namespace {

/// Maximum number of queued items per stream. If it is reached, the host waits. A process with
/// thousands of streams starts with small rings, large enough for launches of graphs.
constexpr size_t kRingSize = 256;
constexpr size_t kRingSizeOfMany = 16;
constexpr int kManyRanks = 64;
/// Polls of a worker before it sleeps: tens of microseconds, about the cost of waking it.
constexpr int kSpins = 2000;

/// Number of host threads for which memory is reserved.
constexpr size_t kHostThreads = 16;

/// xorshift64*, the random numbers of stress mode.
uint64_t nextRandom(uint64_t &state) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545F4914F6CDD1Dull;
}

void pauseCore() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace

Engine::Engine(const Options &options)
    : stress_(options.scheduleSeed.has_value()), seed_(options.scheduleSeed.value_or(0)),
      ringSize_(options.ranks > kManyRanks ? kRingSizeOfMany : kRingSize),
      workerCount_(options.workers > 0
                       ? options.workers
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  hostWaits_.reserve(kHostThreads);
  drivers_.reserve(kHostThreads);
}

Status Engine::startThreads() {
  for (int i = 0; i < workerCount_; ++i) {
    std::thread thread;
    RETURN_IF_ERROR(startThread(
        thread, [this, seed = seed_ * 0x9E3779B97F4A7C15ull + 2 * i + 1] { work(seed); }));
    threads_.push_back(std::move(thread));
  }
  return Status::ok();
}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  workers_.notify_all();
  for (std::thread &thread : threads_)
    thread.join();
}

Lane *Engine::addStream(int rank, std::string name) {
  auto lane = std::make_unique<Lane>();
  lane->rank = rank;
  lane->name = std::move(name);
  lane->ring.resize(ringSize_);
  reserveLanes(1);
  std::lock_guard lock(mutex_);
  streams_.push_back(std::move(lane));
  return streams_.back().get();
}

void Engine::reserveLanes(size_t count) {
  std::lock_guard lock(mutex_);
  lanesMax_ += count;
  if (ready_.size() >= lanesMax_)
    return;
  std::vector<Lane *> wider(lanesMax_ * 2);
  for (size_t i = 0; i < readySize_; ++i)
    wider[i] = ready_[(readyHead_ + i) % ready_.size()];
  ready_.swap(wider);
  readyHead_ = 0;
}

void Engine::releaseLanes(size_t count) {
  std::lock_guard lock(mutex_);
  lanesMax_ -= count;
}

Status Engine::submit(Lane &stream, const Item &item) {
  std::unique_lock lock(mutex_);
  noteDriver();
  if (stream.tail - stream.head == stream.ring.size() && !widen(stream))
    RETURN_IF_ERROR(
        waitOnHost(lock, [&] { return stream.tail - stream.head < stream.ring.size(); }));
  if (failed_)
    return failure_;
  stream.ring[stream.tail++ % stream.ring.size()] = item;
  if (stream.state == Lane::Idle)
    makeReady(stream);
  return Status::ok();
}

bool Engine::widen(Lane &stream) {
  if (stream.ring.size() == kRingSize)
    return false;
  std::vector<Item> wider(stream.ring.size() * 2);
  for (uint64_t i = stream.head; i < stream.tail; ++i)
    wider[i % wider.size()] = stream.ring[i % stream.ring.size()];
  stream.ring.swap(wider);
  return true;
}

template <typename Ready>
Status Engine::waitOnHost(std::unique_lock<std::mutex> &lock, Ready ready) {
  struct Wait final : HostWait {
    explicit Wait(const Ready &condition) : ready(condition) {}
    bool isOver() const override { return ready(); }
    const Ready &ready;
  } wait(ready);
  hostWaits_.push_back(&wait);
  failIfStuck();
  // After a failure, waits for running kernels, since the caller may free memory that they use.
  host_.wait(lock, [&] { return ready() || (failed_ && running_ == 0); });
  std::erase(hostWaits_, &wait);
  return ready() ? Status::ok() : failure_;
}

void Engine::noteDriver() {
  std::thread::id self = std::this_thread::get_id();
  if (std::ranges::find(drivers_, self) == drivers_.end())
    drivers_.push_back(self);
}

bool Engine::canHostGoOn() const {
  return std::ranges::any_of(drivers_, [&](std::thread::id driver) {
    return std::ranges::none_of(hostWaits_, [&](const HostWait *wait) {
      return wait->thread == driver && !wait->isOver();
    });
  });
}

Status Engine::wait(EventState &event, uint64_t ticket) {
  if (event.done.load(std::memory_order_acquire) >= ticket)
    return Status::ok();
  std::unique_lock lock(mutex_);
  event.waiterCount.fetch_add(1);
  Status status = waitOnHost(lock, [&] { return event.done.load() >= ticket; });
  event.waiterCount.fetch_sub(1);
  return status;
}

Status Engine::waitForAny(std::span<const Awaited> events) {
  std::unique_lock lock(mutex_);
  for (const Awaited &each : events)
    each.event->waiterCount.fetch_add(1);
  Status status = waitOnHost(lock, [&] { return std::ranges::any_of(events, &Awaited::isOver); });
  for (const Awaited &each : events)
    each.event->waiterCount.fetch_sub(1);
  return status;
}

Status Engine::waitIdle() {
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(waitOnHost(lock, [&] { return active_ == 0 && blocked_ == 0; }));
  return failed_ ? failure_ : Status::ok();
}

void Engine::work(uint64_t seed) {
  std::unique_lock lock(mutex_);
  while (Lane *lane = take(lock, seed)) {
    ++running_;
    lane->state = Lane::Running;
    run(*lane, lock);
    --running_;
    if (failed_ && running_ == 0)
      host_.notify_all();
  }
}

Lane *Engine::take(std::unique_lock<std::mutex> &lock, uint64_t &random) {
  auto hasWork = [this] { return readySize_ > 0 && !failed_; };
  while (!stopping_) {
    if (hasWork()) {
      if (stress_) {
        size_t drawn = (readyHead_ + nextRandom(random) % readySize_) % ready_.size();
        std::swap(ready_[readyHead_], ready_[drawn]);
      }
      Lane *lane = ready_[readyHead_];
      readyHead_ = (readyHead_ + 1) % ready_.size();
      readyCount_.store(--readySize_, std::memory_order_relaxed);
      return lane;
    }
    if (active_ > 0) { // other lanes run and may make this one ready
      ++spinning_;
      lock.unlock();
      for (int i = 0; i < kSpins && readyCount_.load(std::memory_order_relaxed) == 0; ++i)
        pauseCore();
      lock.lock();
      --spinning_;
      if (hasWork())
        continue;
    }
    ++sleeping_;
    workers_.wait(lock, [&] { return stopping_ || hasWork(); });
    --sleeping_;
  }
  return nullptr;
}

void Engine::run(Lane &lane, std::unique_lock<std::mutex> &lock) {
  lock.unlock();
  while (true) {
    if (failed_.load(std::memory_order_relaxed)) {
      lock.lock();
      return;
    }
    const Item *item = next(lane, lock);
    if (!item)
      return;
    lane.at = item;
    bool isTracing = isTracing_.load(std::memory_order_relaxed);
    if (isTracing && lane.phase == Lane::Start)
      lane.beganNs = nowNs();
    if (!execute(lane, *item, lock))
      return;
    if (isTracing)
      record(lane, *item);
    lane.phase = Lane::Start;
    lane.hasCurrent = false;
    ++lane.cursor;
    if (stress_) {
      lock.lock();
      makeReady(lane);
      return;
    }
  }
}

const Item *Engine::next(Lane &lane, std::unique_lock<std::mutex> &lock) {
  if (lane.graph) {
    if (lane.cursor < lane.items.size())
      return &lane.items[lane.cursor];
    lock.lock();
    endLane(lane);
    return nullptr;
  }
  if (lane.hasCurrent)
    return &lane.current;
  lock.lock();
  if (lane.head == lane.tail) {
    endLane(lane);
    return nullptr;
  }
  lane.current = lane.ring[lane.head++ % lane.ring.size()];
  lane.hasCurrent = true;
  if (!hostWaits_.empty() && lane.tail - lane.head == lane.ring.size() - 1)
    host_.notify_all();
  lock.unlock();
  return &lane.current;
}

bool Engine::execute(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  switch (item.kind) {
  case Item::Kernel:
    return runKernel(lane, item, lock);
  case Item::Copy:
    std::memmove(item.to, item.from, static_cast<size_t>(item.bytes));
    return true;
  case Item::Fill:
    std::memset(item.to, item.fillValue, static_cast<size_t>(item.bytes));
    return true;
  case Item::Word:
    std::atomic_ref(*static_cast<uint32_t *>(item.to)).store(item.word, std::memory_order_relaxed);
    return true;
  case Item::Collective:
    return meet(lane, item, lock);
  case Item::Record:
    recordEvent(lane, item, lock);
    return true;
  case Item::Wait:
    return waitInLane(lane, item, lock);
  case Item::Launch:
    return lane.phase == Lane::Done || launchGraph(lane, item, lock);
  }
  return true;
}

void Engine::call(const Lane &lane, const Item &item) {
  auto run = [&](kernels::Call &call) {
    if (lane.graph) {
      call.step = lane.graph->params.step;
      call.microbatch = lane.graph->params.microbatch;
      call.microbatches = lane.graph->params.microbatches;
    }
    item.kernel(call);
  };
  if (!item.own)
    return run(*item.call);
  kernels::Call own = hal::apply(*item.sharedCall, *item.own);
  run(own);
}

bool Engine::runKernel(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  std::string what;
  try {
    call(lane, item);
    return true;
  } catch (const std::exception &error) { // libraries below our kernels may throw
    what = error.what();
  } catch (...) {
    what = "an exception of unknown type";
  }
  lock.lock();
  fail(makeStatus(StatusCode::Internal, "rank {}: '{}' failed: {}", lane.rank, item.label, what));
  return false;
}

void Engine::recordEvent(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  EventState &event = *item.event;
  if (event.isTimed)
    event.reachedNs.store(nowNs());
  // Sequentially consistent. The waiter increments the count and then checks `done`, so either the
  // waiter sees `done`, or this thread sees the waiter.
  event.done.store(item.ticket ? item.ticket : lane.graph->launches);
  if (event.waiterCount.load() == 0)
    return;
  lock.lock();
  for (Lane *waiter : event.waiters)
    makeReady(*waiter);
  event.waiterCount.fetch_sub(static_cast<uint32_t>(event.waiters.size()));
  event.waiters.clear();
  if (!hostWaits_.empty())
    host_.notify_all();
  lock.unlock();
}

/// False if the lane was parked because the event has not been reached. recordEvent() explains why
/// the event is checked again after the count was raised.
bool Engine::waitInLane(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  EventState &event = *item.event;
  uint64_t ticket = item.ticket ? item.ticket : lane.graph->launches;
  if (event.done.load(std::memory_order_acquire) >= ticket)
    return true;
  lock.lock();
  event.waiterCount.fetch_add(1);
  if (event.done.load() >= ticket) {
    event.waiterCount.fetch_sub(1);
    lock.unlock();
    return true;
  }
  event.waiters.push_back(&lane);
  park(lane);
  return false;
}

bool Engine::launchGraph(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  GraphState &graph = *item.graph;
  if (graph.lanes.empty())
    return true;
  lock.lock();
  graph.parent = &lane;
  graph.params = item.params;
  graph.lanesLeft = graph.lanes.size();
  ++graph.launches;
  for (const std::unique_ptr<Lane> &part : graph.lanes) {
    part->cursor = 0;
    part->phase = Lane::Start;
    makeReady(*part);
  }
  park(lane);
  return false;
}

/// After the last lane of a graph, the lane that launched it continues. Threads that wait for
/// everything are notified once nothing is left.
void Engine::endLane(Lane &lane) {
  lane.state = Lane::Idle;
  lane.at = nullptr;
  --active_;
  if (lane.graph && --lane.graph->lanesLeft == 0) {
    lane.graph->parent->phase = Lane::Done;
    makeReady(*lane.graph->parent);
  }
  failIfStuck();
  if (active_ == 0 && blocked_ == 0 && !hostWaits_.empty())
    host_.notify_all();
}

void Engine::makeReady(Lane &lane) {
  if (lane.state != Lane::Running && lane.state != Lane::Away)
    ++active_;
  if (lane.state == Lane::Blocked)
    --blocked_;
  lane.state = Lane::Ready;
  SHARDC_DCHECK(readySize_ < ready_.size(), "{} lanes are ready at once", readySize_);
  ready_[(readyHead_ + readySize_) % ready_.size()] = &lane;
  readyCount_.store(++readySize_, std::memory_order_relaxed);
  if (sleeping_ > 0 && readySize_ > static_cast<size_t>(spinning_))
    workers_.notify_one();
}

void Engine::park(Lane &lane) {
  lane.state = Lane::Blocked;
  --active_;
  ++blocked_;
  failIfStuck();
}

void Engine::failIfStuck() {
  if (active_ == 0 && blocked_ > 0 && !failed_ && !canHostGoOn())
    fail(
        Status(StatusCode::Deadlock, "deadlock: the remaining work cannot run" + describeQueues()));
}

void Engine::fail(Status status) {
  if (failed_)
    return;
  failure_ = std::move(status);
  failed_ = true;
  for (RemoteMember *remote : remotes_)
    remote->cancel();
  host_.notify_all();
}

} // namespace shardc::host
