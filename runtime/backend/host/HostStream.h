// Streams, events, channels and graphs of the host backend. They convert calls to items: for the
// engine's queues or, during capture, for a graph.
#pragma once

#include "runtime/backend/host/Engine.h"
#include "runtime/backend/host/Remote.h"
#include "runtime/hal/Stream.h"
#include "runtime/hal/TestPort.h"

namespace shardc::host {

class HostStream;

/// The items of one capture, by stream. A launch executes them again with its own parameters.
class HostGraph final : public hal::Graph {
public:
  HostGraph(Engine &engine, int rank) : engine_(engine), rank_(rank) {}
  ~HostGraph() override { engine_.releaseLanes(reserved_); }

  /// The lane that holds the captured items of a stream, created on first use.
  Lane *addLane(const std::string &name);
  /// An event between streams of the graph. The graph owns it.
  EventState *addEvent();
  /// Drops redundant items, and reserves lanes in the engine. Call it once, after the capture.
  void finish();

  /// What the engine executes.
  GraphState &state() { return state_; }
  int rank() const { return rank_; }

private:
  /// Drops the fork at a graph's start and the join at its end, which are redundant: lanes start
  /// together, and the graph ends when all of them have ended.
  void dropTrivialWaits();
  /// Removes records of events that nothing in this graph waits for.
  void dropIdleRecords();

  Engine &engine_;
  int rank_;
  GraphState state_;
  size_t reserved_ = 0;
};

/// Counts its records: it is reached when the engine has executed the last one.
class HostEvent final : public hal::Event {
public:
  explicit HostEvent(Engine &engine, bool isTimed = false) : engine_(engine) {
    state_.waiters.reserve(8);
    state_.isTimed = isTimed;
  }
  bool isDone() override { return state_.done.load(std::memory_order_acquire) >= recorded_; }
  Status synchronize() override { return engine_.wait(state_, recorded_); }
  double secondsSince(hal::Event &earlier) override;
  /// The last record, for waits for any of several events.
  Engine::Awaited awaited() { return {&state_, recorded_}; }

private:
  friend class HostStream;
  Engine &engine_;
  EventState state_;
  uint64_t recorded_ = 0; ///< ticket of the last record
  const HostStream *stream_ = nullptr;
  HostGraph *capture_ = nullptr; ///< the capture that last recorded it
  EventState *captured_ = nullptr;
  uint64_t captureId_ = 0;
};

/// Meets the members of a collective: by the engine if they are in this process, by RemoteMember
/// otherwise. All members are in one process, or each has its own.
class HostChannel final : public hal::Channel {
public:
  explicit HostChannel(hal::ChannelDesc desc);
  /// Creates a channel whose other members are all in other processes.
  HostChannel(hal::ChannelDesc desc, Engine &engine, hal::Peers &peers,
              std::vector<Socket> sockets);
  ~HostChannel() override;

  /// Index of a rank among the members, or -1.
  int memberOf(int rank) const;
  ChannelState &state() { return state_; }
  /// Null if all members are in this process.
  RemoteMember *remote() { return remote_.get(); }

  /// The stream of a member's last collective; used to order the next collective after it.
  struct Order {
    HostStream *stream = nullptr;
    uint64_t captureId = 0;
    std::unique_ptr<HostEvent> event;
  };
  std::vector<Order> order;

private:
  ChannelState state_;
  Engine *engine_ = nullptr;
  std::unique_ptr<RemoteMember> remote_;
};

/// State that a device's streams share. A device has at most one capture at a time.
struct DeviceState {
  int rank = 0;
  std::unique_ptr<HostGraph> capture;
  HostStream *origin = nullptr; ///< the stream on which the capture began
  uint64_t captureId = 0;       ///< number of the current capture
  std::vector<HostStream *> streams;
};

/// Appends items to the stream's lane, or to the graph while it takes part in a capture.
class HostStream final : public hal::Stream {
public:
  HostStream(Engine &engine, DeviceState &device, Lane *lane, std::string name);
  ~HostStream() override;

  Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) override;
  Status launchShared(kernels::KernelFn kernel, const kernels::Call &call, const hal::OwnPart &own,
                      const char *label) override;
  Status copy(void *to, const void *from, int64_t bytes, const char *label) override;
  Status fill(void *to, uint8_t value, int64_t bytes, const char *label) override;
  Status collective(hal::Channel &channel, const hal::Collective &desc, const char *label) override;
  Status writeWord(uint32_t *word, uint32_t value) override;
  Status injectError(hal::InjectedError error, const hal::Channel &channel);
  Status record(hal::Event &event) override;
  Status wait(hal::Event &event) override;
  Status beginCapture() override;
  Result<std::unique_ptr<hal::Graph>> endCapture() override;
  void abandonCapture() override;
  Status launch(hal::Graph &graph, const hal::LaunchParams &params) override;

private:
  Status add(const Item &item);
  /// Every stream that joined the capture must finally be awaited by another one. Backends with
  /// real graphs refuse a capture without this.
  Status checkJoined() const;
  /// Ends the capture and returns its graph. The rank's streams execute work again.
  std::unique_ptr<HostGraph> leaveCapture();
  /// Orders this collective after the rank's earlier collectives on the channel, even if they were
  /// issued on other streams.
  Status orderAfterLast(HostChannel &channel, int member);

  Engine &engine_;
  DeviceState &device_;
  Lane *lane_;
  std::string name_;
  Lane *captureLane_ = nullptr; ///< set while this stream takes part in a capture
};

} // namespace shardc::host
