// Synchronises the lanes that take part in a collective, and reports members that do not match.
#include <fmt/format.h>

#include "runtime/backend/host/Collectives.h"
#include "runtime/backend/host/Engine.h"
#include "runtime/backend/host/Remote.h"

namespace shardc::host {
namespace {

/// Below this size, one worker executes the whole collective, since sharing costs more than it
/// saves.
constexpr int64_t kShareBytes = 1 << 18;

} // namespace

/// 1. Each member arrives and waits. 2. The last member to arrive executes all parts. For large
/// collectives, it wakes the others instead, and each member executes its own part. 3. The member
/// that finishes the last part releases the others.
bool Engine::meet(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  ChannelState &channel = *item.channel;
  if (lane.phase == Lane::Done)
    return true;
  if (channel.remote)
    return goRemote(lane, item, lock);
  if (lane.phase == Lane::Start) {
    lock.lock();
    if (!arrive(lane, item))
      return false;
    bool share = isWorthSharing(channel);
    if (share && stress_) {
      makeReady(lane); // stress mode then also draws which part runs first
      return false;
    }
    lock.unlock();
    if (!share) {
      for (int part = 0; part < static_cast<int>(channel.descs.size()); ++part)
        runPart(channel.descs, part);
      lock.lock();
      finishTogether(channel, lane);
      lock.unlock();
      return true;
    }
  }
  runPart(channel.descs, item.member);
  lock.lock();
  if (++channel.partsDone < static_cast<int>(channel.descs.size())) {
    lane.phase = Lane::PartDone;
    park(lane);
    return false;
  }
  finishTogether(channel, lane);
  lock.unlock();
  return true;
}

bool Engine::goRemote(Lane &lane, const Item &item, std::unique_lock<std::mutex> &lock) {
  lock.lock();
  if (lane.phase == Lane::Done || failed_)
    return false;
  lane.state = Lane::Away;
  ++running_;
  item.channel->remote->start(item.collective, item.label, &lane);
  return false;
}

void Engine::finishRemote(Lane &lane, Status status) {
  std::lock_guard lock(mutex_);
  --running_;
  if (!status.isOk())
    fail(std::move(status).withContext(fmt::format("rank {}", lane.rank)));
  lane.phase = Lane::Done;
  makeReady(lane);
  if (failed_)
    host_.notify_all();
}

void Engine::addRemote(RemoteMember *remote) {
  std::lock_guard lock(mutex_);
  remotes_.push_back(remote);
}

void Engine::removeRemote(RemoteMember *remote) {
  std::lock_guard lock(mutex_);
  std::erase(remotes_, remote);
}

void Engine::abort(Status status) {
  std::lock_guard lock(mutex_);
  fail(std::move(status));
}

bool Engine::isWorthSharing(const ChannelState &channel) const {
  return channel.descs.size() > 1 &&
         (stress_ || (workerCount_ > 1 && bytesTouched(channel.descs) >= kShareBytes));
}

bool Engine::arrive(Lane &lane, const Item &item) {
  ChannelState &channel = *item.channel;
  if (channel.arrived[item.member]) {
    fail(makeStatus(StatusCode::Internal,
                    "rank {} is in two collectives of channel '{}' at once: '{}' and '{}'",
                    lane.rank, channel.name, channel.arrived[item.member]->at->label, item.label));
    return false;
  }
  channel.arrived[item.member] = &lane;
  channel.descs[item.member] = &item.collective;
  if (++channel.arrivedCount < static_cast<int>(channel.members.size())) {
    park(lane);
    return false;
  }
  if (Status status = checkMembers(channel.descs); !status.isOk()) {
    std::string text =
        fmt::format("collective on channel '{}': {}", channel.name, status.message());
    for (size_t m = 0; m < channel.arrived.size(); ++m)
      text += fmt::format("\n  rank {}: '{}'", channel.members[m], channel.arrived[m]->at->label);
    fail(std::move(status).withMessage(std::move(text)));
    return false;
  }
  if (isWorthSharing(channel)) {
    channel.partsDone = 0;
    for (Lane *member : channel.arrived) {
      member->phase = Lane::Part;
      if (member != &lane)
        makeReady(*member);
    }
  }
  return true;
}

void Engine::finishTogether(ChannelState &channel, Lane &self) {
  channel.arrivedCount = 0;
  for (Lane *&member : channel.arrived) {
    if (member != &self) {
      member->phase = Lane::Done;
      makeReady(*member);
    }
    member = nullptr;
  }
}

std::string Engine::describeQueues() const {
  std::string out;
  for (const std::unique_ptr<Lane> &stream : streams_) {
    if (stream->state == Lane::Idle)
      continue;
    if (stream->at && stream->at->kind == Item::Launch) {
      for (const std::unique_ptr<Lane> &part : stream->at->graph->lanes)
        if (part->state != Lane::Idle)
          describeLane(*part, out);
    } else {
      describeLane(*stream, out);
    }
  }
  return out;
}

void Engine::describeLane(const Lane &lane, std::string &out) const {
  out += fmt::format("\n  rank {} {}: ", lane.rank, lane.name);
  if (!lane.at) {
    out += "not begun";
  } else if (lane.at->kind == Item::Collective) {
    const ChannelState &channel = *lane.at->channel;
    out += fmt::format("'{}' waits on channel '{}' for rank", lane.at->label, channel.name);
    for (size_t m = 0; m < channel.members.size(); ++m)
      if (!channel.arrived[m])
        out += fmt::format(" {}", channel.members[m]);
  } else {
    // A wait has no label, so the item after it tells where the stream is.
    const char *label = lane.at->label;
    for (size_t i = lane.cursor; lane.graph && i < lane.items.size() && !*label; ++i)
      label = lane.items[i].label;
    for (uint64_t i = lane.head; !lane.graph && i < lane.tail && !*label; ++i)
      label = lane.ring[i % lane.ring.size()].label;
    out += *label ? fmt::format("'{}' waits for an event", label) : "waits for an event";
  }
}

} // namespace shardc::host
