#include "runtime/backend/host/HostStream.h"

#include <algorithm>
#include <limits>

namespace shardc::host {

double HostEvent::secondsSince(hal::Event &earlier) {
  const EventState &from = static_cast<HostEvent &>(earlier).state_;
  if (!state_.isTimed || !from.isTimed || from.reachedNs.load() == 0 ||
      state_.reachedNs.load() == 0)
    return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(state_.reachedNs.load() - from.reachedNs.load()) * 1e-9;
}

HostChannel::HostChannel(hal::ChannelDesc desc) : Channel(std::move(desc)) {
  state_.name = this->desc().name;
  state_.members = this->desc().members;
  state_.arrived.resize(state_.members.size());
  state_.descs.resize(state_.members.size());
  order.resize(state_.members.size());
}

HostChannel::HostChannel(hal::ChannelDesc desc, Engine &engine, hal::Peers &peers,
                         std::vector<Socket> sockets)
    : HostChannel(std::move(desc)) {
  engine_ = &engine;
  remote_ = std::make_unique<RemoteMember>(
      peers, this->desc().name, this->desc().members, memberOf(peers.rank()), std::move(sockets),
      [&engine](void *lane, Status status) {
        engine.finishRemote(*static_cast<Lane *>(lane), std::move(status));
      });
  state_.remote = remote_.get();
  engine.addRemote(remote_.get());
}

HostChannel::~HostChannel() {
  if (remote_)
    engine_->removeRemote(remote_.get());
}

int HostChannel::memberOf(int rank) const {
  auto at = std::find(desc().members.begin(), desc().members.end(), rank);
  return at == desc().members.end() ? -1 : static_cast<int>(at - desc().members.begin());
}

HostStream::HostStream(Engine &engine, DeviceState &device, Lane *lane, std::string name)
    : engine_(engine), device_(device), lane_(lane), name_(std::move(name)) {
  device_.streams.push_back(this);
}

HostStream::~HostStream() { std::erase(device_.streams, this); }

Status HostStream::add(const Item &item) {
  if (captureLane_) {
    captureLane_->items.push_back(item);
    return Status::ok();
  }
  return engine_.submit(*lane_, item);
}

Status HostStream::launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) {
  return add({.kind = Item::Kernel, .label = label, .kernel = kernel, .call = &call});
}

Status HostStream::launchShared(kernels::KernelFn kernel, const kernels::Call &call,
                                const hal::OwnPart &own, const char *label) {
  return add(
      {.kind = Item::Kernel, .label = label, .kernel = kernel, .sharedCall = &call, .own = &own});
}

Status HostStream::copy(void *to, const void *from, int64_t bytes, const char *label) {
  return add({.kind = Item::Copy, .label = label, .to = to, .from = from, .bytes = bytes});
}

Status HostStream::fill(void *to, uint8_t value, int64_t bytes, const char *label) {
  return add({.kind = Item::Fill, .fillValue = value, .label = label, .to = to, .bytes = bytes});
}

/// Queues the collective after the rank's previous one on this channel. Channels with members in
/// other processes also reserve their receive buffer now, so that no allocation occurs while the
/// collective runs.
Status HostStream::collective(hal::Channel &channel, const hal::Collective &desc,
                              const char *label) {
  auto &hostChannel = static_cast<HostChannel &>(channel);
  int member = hostChannel.memberOf(device_.rank);
  if (member < 0)
    return makeStatus(StatusCode::Internal, "rank {} is not a member of channel '{}'", device_.rank,
                      channel.desc().name);
  RETURN_IF_ERROR(orderAfterLast(hostChannel, member));
  if (hostChannel.remote())
    hostChannel.remote()->reserve(desc);
  return add({.kind = Item::Collective,
              .member = member,
              .label = label,
              .channel = &hostChannel.state(),
              .collective = desc});
}

Status HostStream::writeWord(uint32_t *word, uint32_t value) {
  return add({.kind = Item::Word, .to = word, .word = value});
}

Status HostStream::injectError(hal::InjectedError error, const hal::Channel &channel) {
  engine_.abort(makeStatus(StatusCode::Internal, "{}: an error was injected",
                           error == hal::InjectedError::Channel
                               ? fmt::format("channel '{}'", channel.desc().name)
                               : fmt::format("stream '{}'", name_)));
  return Status::ok();
}

Status HostStream::orderAfterLast(HostChannel &channel, int member) {
  HostChannel::Order &order = channel.order[member];
  uint64_t captureId = captureLane_ ? device_.captureId : 0;
  if (order.stream && order.stream != this && order.captureId == captureId) {
    if (!order.event)
      order.event = std::make_unique<HostEvent>(engine_);
    if (!captureLane_) // the event changes streams, so its last record must have been reached
      RETURN_IF_ERROR(order.event->synchronize());
    RETURN_IF_ERROR(order.stream->record(*order.event));
    RETURN_IF_ERROR(wait(*order.event));
  }
  order.stream = this;
  order.captureId = captureId;
  return Status::ok();
}

/// During a capture, a record creates an event of the graph's own, to which later waits in the same
/// capture refer.
Status HostStream::record(hal::Event &event) {
  auto &hostEvent = static_cast<HostEvent &>(event);
  if (captureLane_) {
    hostEvent.captured_ = device_.capture->addEvent();
    hostEvent.captureId_ = device_.captureId;
    hostEvent.capture_ = device_.capture.get();
    return add({.kind = Item::Record, .event = hostEvent.captured_});
  }
  // Records on two streams could be reached in any order, so the later ticket could hide that the
  // earlier record is still pending.
  if (hostEvent.stream_ && hostEvent.stream_ != this && !hostEvent.isDone())
    return makeStatus(StatusCode::Internal,
                      "rank {} {}: the event's record on stream {} has not been reached yet",
                      device_.rank, name_, hostEvent.stream_->name_);
  hostEvent.stream_ = this;
  hostEvent.capture_ = nullptr;
  RETURN_IF_ERROR(
      add({.kind = Item::Record, .event = &hostEvent.state_, .ticket = hostEvent.recorded_ + 1}));
  ++hostEvent.recorded_;
  return Status::ok();
}

Status HostStream::wait(hal::Event &event) {
  auto &hostEvent = static_cast<HostEvent &>(event);
  bool isCaptured = device_.capture && hostEvent.capture_ == device_.capture.get() &&
                    hostEvent.captureId_ == device_.captureId;
  if (isCaptured) {
    if (!captureLane_)
      captureLane_ = device_.capture->addLane(name_);
    return add({.kind = Item::Wait, .event = hostEvent.captured_});
  }
  if (captureLane_ && hostEvent.recorded_ > 0)
    return makeStatus(StatusCode::Internal,
                      "rank {} {}: a capture waits for an event recorded outside of it",
                      device_.rank, name_);
  if (hostEvent.recorded_ == 0 || hostEvent.isDone())
    return Status::ok();
  return add({.kind = Item::Wait, .event = &hostEvent.state_, .ticket = hostEvent.recorded_});
}

Status HostStream::beginCapture() {
  if (device_.capture)
    return makeStatus(StatusCode::Internal, "rank {}: a capture is already active", device_.rank);
  device_.capture = std::make_unique<HostGraph>(engine_, device_.rank);
  device_.origin = this;
  ++device_.captureId;
  captureLane_ = device_.capture->addLane(name_);
  return Status::ok();
}

Status HostStream::checkJoined() const {
  for (const HostStream *stream : device_.streams)
    if (stream != this && stream->captureLane_ && !stream->captureLane_->items.empty() &&
        stream->captureLane_->items.back().kind != Item::Record)
      return makeStatus(StatusCode::Internal, "rank {}: the capture ends without joining stream {}",
                        device_.rank, stream->name_);
  return Status::ok();
}

Result<std::unique_ptr<hal::Graph>> HostStream::endCapture() {
  if (!device_.capture || device_.origin != this)
    return makeStatus(StatusCode::Internal, "rank {} {}: no capture was started on this stream",
                      device_.rank, name_);
  Status joined = checkJoined();
  std::unique_ptr<HostGraph> graph = leaveCapture();
  RETURN_IF_ERROR(joined);
  graph->finish();
  return std::unique_ptr<hal::Graph>(std::move(graph));
}

void HostStream::abandonCapture() {
  if (device_.capture && device_.origin == this)
    leaveCapture();
}

std::unique_ptr<HostGraph> HostStream::leaveCapture() {
  for (HostStream *stream : device_.streams)
    stream->captureLane_ = nullptr;
  device_.origin = nullptr;
  return std::move(device_.capture);
}

Status HostStream::launch(hal::Graph &graph, const hal::LaunchParams &params) {
  auto &hostGraph = static_cast<HostGraph &>(graph);
  if (captureLane_)
    return makeStatus(StatusCode::Internal, "rank {} {}: a graph is launched inside a capture",
                      device_.rank, name_);
  if (hostGraph.rank() != device_.rank)
    return makeStatus(StatusCode::Internal, "rank {}: the graph belongs to rank {}", device_.rank,
                      hostGraph.rank());
  return add(
      {.kind = Item::Launch, .label = "graph", .graph = &hostGraph.state(), .params = params});
}

} // namespace shardc::host
