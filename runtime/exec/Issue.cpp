// Enqueues a bound segment: as a captured graph, or op by op.
#include <algorithm>
#include <utility>

#include "runtime/base/ProgressWord.h"
#include "runtime/base/Seconds.h"
#include "runtime/exec/Executable.h"

namespace shardc::exec {
namespace {

/// Limit of one copy of a snapshot, in bytes. A copy engine finishes a copy before it starts
/// another, and all-gathers of a step may wait for it, so copies are short. They must also be
/// few enough not to fill a queue of the device, which would block the thread that feeds it.
constexpr int64_t kSnapshotCopyMax = int64_t{32} << 20;
/// Limit of one copy within the device, in bytes. Such copies are faster.
constexpr int64_t kStageCopyMax = int64_t{512} << 20;

/// The host launches the next graph when one eighth of a large graph's ops is left. A launch takes
/// about a microsecond per node, and such graphs execute for ten or more microseconds per node.
constexpr size_t kNearEnd = 8;

/// For each op, whether it is the last kernel of its unit on its stream, or belongs to no unit.
std::vector<bool> unitEnds(const plan::Segment &segment, const BoundSegment &bound) {
  std::vector<bool> ends(segment.ops.size());
  std::array<std::optional<int32_t>, plan::kStreamsMax> next; // unit of the next kernel
  for (size_t i = segment.ops.size(); i-- > 0;) {
    const BoundOp &op = bound.ops[i];
    if (op.kind != BoundOp::Kernel)
      continue;
    std::optional<int32_t> &behind = next[op.stream];
    ends[i] = behind != segment.ops[i].unit;
    behind = segment.ops[i].unit;
  }
  return ends;
}

Status copyInParts(hal::Stream &stream, const BoundOp &op, int64_t most) {
  auto *to = static_cast<uint8_t *>(op.to);
  const auto *from = static_cast<const uint8_t *>(op.from);
  for (int64_t at = 0; at < op.bytes; at += most)
    RETURN_IF_ERROR(stream.copy(to + at, from + at, std::min(most, op.bytes - at), op.label));
  return Status::ok();
}

} // namespace

Status Executable::captureAll() {
  auto begin = std::chrono::steady_clock::now();
  for (std::unique_ptr<Rank> &rank : ranks_)
    for (uint32_t s = 0; s < segments_.size(); ++s)
      for (const auto &[key, instance] : rank->segments[s]) {
        const plan::Segment &segment = *segments_[s].segment;
        if (segment.before != plan::kNone)
          continue; // not captured: saves are rare, and their copies are enqueued separately
        if (static_cast<int64_t>(instance->bound->ops.size() * kNearEnd) > options_.nodesAhead &&
            options_.nodesAhead > 0) {
          ASSIGN_OR_RETURN(instance->nearEnd, rank->device->createMark());
        }
        ASSIGN_OR_RETURN(instance->graph, capture(*rank, segment, *instance));
        std::string slot = segments_[s].slots > 1 ? fmt::format(" slot {}", key.slot) : "";
        instance->graph->setLabel(
            segment.body ? fmt::format("{} {}{}", segment.name, plan::toString(key.variant), slot)
                         : segment.name);
        if (rank == ranks_.front())
          ++stages_.graphs, stages_.nodes += instance->graph->nodes();
      }
  stages_.captureSeconds = secondsSince(begin);
  return Status::ok();
}

/// Abandons the capture on failure. In an open capture, CUDA refuses to report the progress of its
/// streams, so a waiting thread would report that refusal instead of the cause.
Result<std::unique_ptr<hal::Graph>> Executable::capture(Rank &rank, const plan::Segment &segment,
                                                        const Instance &instance) {
  RETURN_IF_ERROR(rank.streams[0]->beginCapture());
  if (Status issued = issue(rank, segment, instance); !issued.isOk()) {
    rank.streams[0]->abandonCapture();
    return issued;
  }
  return rank.streams[0]->endCapture();
}

/// All copies go to the stream of the first copy, even if they name other streams. This preserves
/// every order that they need.
Status Executable::launchBackground(uint32_t segment) {
  const plan::Segment &what = *segments_[segment].segment;
  Numbered &before = segments_[numberOf(segments_[segment].role, what.before)];
  bool copiesOn = before.segment->before != plan::kNone;
  for (size_t r : ranksOf(segment)) {
    Rank &rank = *ranks_[r];
    const Instance &instance = *rank.segments[segment].find({plan::Variant::Only});
    auto first = std::ranges::find(instance.bound->ops, BoundOp::Copy, &BoundOp::kind);
    bool hasCopies = first != instance.bound->ops.end();
    hal::Stream &stream = *rank.streams[hasCopies ? first->stream : plan::kComputeStream];
    hal::Event &begin = copiesOn ? *rank.backgroundEnd : *rank.backgroundBegin;
    hal::Event &end = copiesOn ? *rank.copiedOn : *rank.backgroundEnd;
    if (!copiesOn)
      RETURN_IF_ERROR(rank.streams[0]->record(begin));
    RETURN_IF_ERROR(stream.wait(begin));
    kernels::Call call;
    for (size_t i = 0; i < instance.bound->ops.size(); ++i)
      if (instance.bound->ops[i].kind == BoundOp::Copy)
        RETURN_IF_ERROR(copyInParts(stream, opOf(instance, i, call),
                                    what.ops[i].kind == plan::OpKind::Stage ? kStageCopyMax
                                                                            : kSnapshotCopyMax));
    RETURN_IF_ERROR(stream.record(end));
  }
  if (!copiesOn)
    before.isJoined = true;
  return Status::ok();
}

bool Executable::isBackgroundDone() const {
  return std::ranges::all_of(ranks_, [](const std::unique_ptr<Rank> &rank) {
    return rank->backgroundEnd->isDone() && rank->copiedOn->isDone();
  });
}

Status Executable::joinBackground(uint32_t segment) {
  if (!std::exchange(segments_[segment].isJoined, false))
    return Status::ok();
  for (size_t r : ranksOf(segment))
    RETURN_IF_ERROR(ranks_[r]->streams[0]->wait(*ranks_[r]->backgroundEnd));
  return Status::ok();
}

Status Executable::makeRoom(uint32_t segment, const plan::SegmentInstance &key) {
  for (size_t r : ranksOf(segment))
    if (const Instance *instance = ranks_[r]->segments[segment].find(key);
        instance && instance->graph)
      RETURN_IF_ERROR(ranks_[r]->queue->makeRoom(instance->graph->nodes()));
  return Status::ok();
}

std::vector<hal::Event *> Executable::awaitedByLaunch(uint32_t segment,
                                                      const plan::SegmentInstance &key) {
  std::vector<hal::Event *> events;
  for (size_t r : ranksOf(segment))
    if (const Instance *instance = ranks_[r]->segments[segment].find(key);
        instance && instance->ended && !instance->ended->isDone())
      events.push_back(instance->ended.get());
  return events;
}

/// Two loops over the ranks: the first launches graphs, and the second issues segments op by op. Op
/// by op, all ranks of this process share the calls, so their parameters may be set only after
/// every rank's previous launch has read them.
Status Executable::launch(uint32_t segment, const plan::SegmentInstance &key,
                          const hal::LaunchParams &params) {
  RETURN_IF_ERROR(makeRoom(segment, key));
  RETURN_IF_ERROR(joinBackground(segment));
  const plan::Segment &what = *segments_[segment].segment;
  for (size_t r : ranksOf(segment)) // before any rank starts work that another one awaits
    if (options_.faults)
      RETURN_IF_ERROR(callFaultHooks(*ranks_[r], what, *ranks_[r]->segments[segment].find(key),
                                     params.step + 1));
  for (size_t r : ranksOf(segment)) {
    Rank &rank = *ranks_[r];
    Instance *instance = rank.segments[segment].find(key);
    SHARDC_CHECK(instance, "segment {} is not bound for variant {}, slot {}", segment,
                 plan::toString(key.variant), key.slot);
    if (instance->graph) {
      RETURN_IF_ERROR(markMicrobatch(rank, what, params.microbatch));
      RETURN_IF_ERROR(rank.streams[0]->launch(*instance->graph, params));
      RETURN_IF_ERROR(rank.queue->launched(*rank.streams[0], *instance->graph,
                                           instance->nearEnd.get(), ++instance->launches));
      continue;
    }
    // All launches of this instance and all ranks share the calls, so the last launch must have
    // read its parameters. That launch does not depend on later segments, so the wait ends.
    if (instance->ended)
      RETURN_IF_ERROR(instance->ended->synchronize());
  }
  if (const Instance &first = *ranks_[ranksOf(segment).front()]->segments[segment].find(key);
      !first.graph)
    setParams(*first.bound, params);
  for (size_t r : ranksOf(segment)) {
    Instance &instance = *ranks_[r]->segments[segment].find(key);
    if (instance.graph)
      continue;
    RETURN_IF_ERROR(markMicrobatch(*ranks_[r], what, params.microbatch));
    RETURN_IF_ERROR(issue(*ranks_[r], what, instance));
    if (!instance.ended) {
      ASSIGN_OR_RETURN(instance.ended, ranks_[r]->device->createEvent());
    }
    RETURN_IF_ERROR(ranks_[r]->streams[0]->record(*instance.ended));
  }
  return Status::ok();
}

void Executable::setParams(const BoundSegment &bound, const hal::LaunchParams &params) {
  for (const std::unique_ptr<kernels::Call> &call : bound.calls) {
    call->step = params.step;
    call->microbatch = params.microbatch;
    call->microbatches = params.microbatches;
  }
}

Status Executable::callFaultHooks(Rank &rank, const plan::Segment &segment,
                                  const Instance &instance, int64_t step) {
  const std::vector<BoundOp> &ops = instance.bound->ops;
  kernels::Call call;
  auto channel = [&](size_t op) { return opOf(instance, op, call).channel; };
  auto enter = [&](size_t op) {
    return rank.words ? rank.streams[0]->writeWord(wordOf(rank, ops[op].stream),
                                                   ProgressWord::inside(map_.numberOf(segment, op)))
                      : Status::ok();
  };
  return options_.faults->beforeLaunch({rank.device->rank(), step,
                                        segment.kind == plan::SegmentKind::Eval, ops, channel,
                                        backend_, *rank.streams[0], enter});
}

Status Executable::issue(Rank &rank, const plan::Segment &segment, const Instance &instance) {
  std::array<bool, plan::kStreamsMax> isUsed{};
  for (const BoundOp &op : instance.bound->ops)
    isUsed[static_cast<size_t>(op.stream)] |=
        op.kind != BoundOp::Nothing || op.isAwaited || !op.waits.empty();
  if (options_.poisonBetweenSegments)
    RETURN_IF_ERROR(issuePoison(rank));
  RETURN_IF_ERROR(rank.streams[0]->record(*rank.streamEvents[0]));
  for (size_t s = 1; s < isUsed.size(); ++s)
    if (isUsed[s])
      RETURN_IF_ERROR(rank.streams[s]->wait(*rank.streamEvents[0]));
  // By op, the event that is recorded after it, if other streams wait for it.
  std::vector<hal::Event *> eventOf(segment.ops.size());
  std::vector<bool> endsUnit = unitEnds(segment, *instance.bound);
  std::array<size_t, plan::kStreamsMax> eventCounts{};
  bool isNearEnd = false;
  for (size_t i = 0; i < instance.bound->ops.size(); ++i) {
    const BoundOp &op = instance.bound->ops[i];
    hal::Stream &stream = *rank.streams[static_cast<size_t>(op.stream)];
    // Of ops that are issued together, the first lists all; the others list none.
    const std::vector<uint32_t> &together = instance.bound->together[i];
    for (uint32_t member : together)
      for (uint32_t awaited : instance.bound->ops[member].waits)
        RETURN_IF_ERROR(stream.wait(*eventOf[awaited]));
    if (together.size() > 1)
      RETURN_IF_ERROR(issueTogether(rank, segment, instance, together));
    else if (!together.empty())
      RETURN_IF_ERROR(issueMarked(rank, instance, op, map_.numberOf(segment, i), endsUnit[i]));
    for (uint32_t member : together)
      if (instance.bound->ops[member].isAwaited) {
        eventOf[member] = rank.events[op.stream][eventCounts[op.stream]++].get();
        RETURN_IF_ERROR(stream.record(*eventOf[member]));
      }
    if (instance.nearEnd && !isNearEnd && op.stream == plan::kComputeStream &&
        i + instance.bound->ops.size() / kNearEnd >= instance.bound->ops.size()) {
      RETURN_IF_ERROR(stream.mark(*instance.nearEnd));
      isNearEnd = true;
    }
  }
  for (size_t s = 1; s < isUsed.size(); ++s)
    if (isUsed[s]) {
      RETURN_IF_ERROR(rank.streams[s]->record(*rank.streamEvents[s]));
      RETURN_IF_ERROR(rank.streams[0]->wait(*rank.streamEvents[s]));
    }
  return Status::ok();
}

Status Executable::issueTogether(Rank &rank, const plan::Segment &segment, const Instance &instance,
                                 std::span<const uint32_t> gathers) {
  const BoundOp &first = instance.bound->ops[gathers.front()];
  if (first.kind != BoundOp::Collective) // skipped in this variant, as are the other gathers
    return Status::ok();
  const RankPart *own = instance.part ? &*instance.part : nullptr;
  hal::Channel &channel = own ? *own->collectives[first.own].channel : *first.channel;
  std::vector<hal::Part> parts;
  for (uint32_t gather : gathers) {
    const BoundOp &op = instance.bound->ops[gather];
    parts.push_back({own ? &own->collectives[op.own].desc : &op.collective, op.label});
  }
  hal::Stream &stream = *rank.streams[static_cast<size_t>(first.stream)];
  bool isMarked = rank.words && channel.size() > 1;
  uint32_t *word = isMarked ? wordOf(rank, first.stream) : nullptr;
  if (isMarked)
    RETURN_IF_ERROR(
        stream.writeWord(word, ProgressWord::inside(map_.numberOf(segment, gathers.front()))));
  RETURN_IF_ERROR(stream.gathers(channel, parts));
  return isMarked
             ? stream.writeWord(word, ProgressWord::after(map_.numberOf(segment, gathers.back())))
             : Status::ok();
}

uint32_t *Executable::wordOf(Rank &rank, size_t word) const {
  return reinterpret_cast<uint32_t *>(rank.words->data()) + word;
}

Status Executable::markMicrobatch(Rank &rank, const plan::Segment &segment, int64_t microbatch) {
  if (!rank.words || !isPipeline_)
    return Status::ok();
  uint32_t word = segment.body ? ProgressWord::ofMicrobatch(microbatch) : 0;
  if (std::exchange(rank.microbatch, word) == word)
    return Status::ok();
  return rank.streams[0]->writeWord(wordOf(rank, plan::kStreamsMax), word);
}

Status Executable::issueMarked(Rank &rank, const Instance &instance, const BoundOp &op,
                               uint32_t number, bool endsUnit) {
  bool isCollective = op.kind == BoundOp::Collective && op.channel->size() > 1;
  if (!rank.words || (!isCollective && !endsUnit))
    return issueOp(rank, instance, op);
  hal::Stream &stream = *rank.streams[static_cast<size_t>(op.stream)];
  uint32_t *word = wordOf(rank, op.stream);
  if (isCollective)
    RETURN_IF_ERROR(stream.writeWord(word, ProgressWord::inside(number)));
  RETURN_IF_ERROR(issueOp(rank, instance, op));
  return stream.writeWord(word, ProgressWord::after(number));
}

/// The ranks of a role share the bound ops. A rank's own addresses and channels are in its part, at
/// index `op.own`.
Status Executable::issueOp(Rank &rank, const Instance &instance, const BoundOp &op) {
  hal::Stream &stream = *rank.streams[static_cast<size_t>(op.stream)];
  const RankPart *part = instance.part ? &*instance.part : nullptr;
  switch (op.kind) {
  case BoundOp::Nothing:
    return Status::ok();
  case BoundOp::Kernel:
    return part ? stream.launchShared(op.kernel->run, *op.call, part->calls[op.own], op.label)
                : stream.launch(op.kernel->run, *op.call, op.label);
  case BoundOp::Collective:
    return part ? stream.collective(*part->collectives[op.own].channel,
                                    part->collectives[op.own].desc, op.label)
                : stream.collective(*op.channel, op.collective, op.label);
  case BoundOp::Copy:
    return part
               ? stream.copy(part->copies[op.own].to, part->copies[op.own].from, op.bytes, op.label)
               : stream.copy(op.to, op.from, op.bytes, op.label);
  }
  return Status::ok();
}

Status Executable::prepareOps(uint32_t segment, const plan::SegmentInstance &key,
                              const hal::LaunchParams &params) {
  RETURN_IF_ERROR(joinBackground(segment));
  if (options_.poisonBetweenSegments)
    for (size_t r : ranksOf(segment))
      RETURN_IF_ERROR(issuePoison(*ranks_[r]));
  for (size_t r : ranksOf(segment)) {
    Rank &rank = *ranks_[r];
    RETURN_IF_ERROR(markMicrobatch(rank, *segments_[segment].segment, params.microbatch));
    RETURN_IF_ERROR(rank.streams[0]->record(*rank.streamEvents[0]));
    RETURN_IF_ERROR(rank.streamEvents[0]->synchronize());
  }
  setParams(*bound_[segment].find(key), params);
  return Status::ok();
}

Status Executable::issueAlone(uint32_t segment, const plan::SegmentInstance &key, size_t op) {
  uint32_t number = map_.numberOf(*segments_[segment].segment, op);
  for (size_t r : ranksOf(segment)) {
    Rank &rank = *ranks_[r];
    const Instance &instance = *rank.segments[segment].find(key);
    const BoundOp &bound = instance.bound->ops[op];
    RETURN_IF_ERROR(issueMarked(rank, instance, bound, number, /*endsUnit=*/false));
    RETURN_IF_ERROR(rank.streams[bound.stream]->record(*rank.streamEvents[bound.stream]));
  }
  return Status::ok();
}

std::vector<hal::Event *> Executable::eventsOf(uint32_t segment, plan::StreamId stream) const {
  std::vector<hal::Event *> events;
  for (size_t r : ranksOf(segment))
    events.push_back(ranks_[r]->streamEvents[stream].get());
  return events;
}

std::vector<Executable::Gap> Executable::findGaps(const plan::Role &role,
                                                  const GroupIndices &indices) {
  std::vector<Gap> gaps;
  for (plan::Arena arena : {plan::Arena::Work, plan::Arena::Sym}) {
    std::vector<std::pair<int64_t, int64_t>> held;
    for (const plan::Cell &cell : role.cells)
      if (cell.place.placed && cell.place.arena == arena) {
        int64_t begin = cell.place.offset + cell.place.coef * indices.of(cell.place.group);
        held.emplace_back(begin, begin + cell.bytes());
      }
    std::sort(held.begin(), held.end());
    int64_t at = 0;
    for (auto [begin, end] : held) {
      if (begin > at)
        gaps.push_back({arena, at, begin});
      at = std::max(at, end);
    }
    if (int64_t size = role.arenaBytes[static_cast<size_t>(arena)]; at < size)
      gaps.push_back({arena, at, size});
  }
  return gaps;
}

/// 0xff bytes are NaN in every floating-point type. An op that reads memory before anything was
/// written to it gives NaN.
Status Executable::issuePoison(Rank &rank) {
  constexpr uint8_t kPoison = 0xff;
  for (const Gap &gap : findGaps(plan_.roles[rank.role], rank.arenas->indices()))
    RETURN_IF_ERROR(rank.streams[0]->fill(rank.arenas->base(gap.arena) + gap.begin, kPoison,
                                          gap.end - gap.begin, "poison what no cell holds"));
  for (std::unique_ptr<hal::Buffer> &workspace : rank.workspaces)
    if (workspace)
      RETURN_IF_ERROR(rank.streams[0]->fill(workspace->data(), kPoison, workspace->bytes(),
                                            "poison a workspace"));
  return Status::ok();
}

} // namespace shardc::exec
