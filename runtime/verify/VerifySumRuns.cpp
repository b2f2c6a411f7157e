// Mixes numbers of values from ops, attributes and operands; what members make together is numbered
// by how often they have met. Writes what a run finds as words with microbatches by their places in
// order, so that runs that do the same have the same words.
#include "runtime/verify/VerifySegmentSums.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace shardc::plan::verifier {

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
  return x ^ (x >> 32);
}

uint64_t ValueNumbers::ofOp(const Op &op) const {
  if (!isOn_)
    return 0;
  // Sums of losses in a step state are each rank's own until the step ends, and no part of it.
  if (op.kind == OpKind::LossAdd || op.kind == OpKind::EvalAdd)
    return numbers_[op.operands[0]];
  uint64_t number = mixed(opInfo(op).index, op.operands.size());
  if (opInfo(op).takesIndex())
    number = mixed(number, static_cast<uint64_t>(op.group));
  for (const Attr &attr : op.attrs)
    number = mixed(mixed(number, static_cast<uint64_t>(attr.key)), static_cast<uint64_t>(attr.i));
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.kind != OpKind::StepFinish || i < 2 || op.getBool(AttrKey::norm_replicated))
      number = mixed(number, numbers_[op.operands[i]]);
  return number;
}

uint64_t ValueNumbers::ofMeeting(const Op &op) {
  if (!isOn_)
    return 0;
  uint64_t number = mixed(static_cast<uint64_t>(op.group), static_cast<uint64_t>(op.channel));
  number = mixed(number, ++meetings_[{op.group, op.channel}]);
  const std::vector<uint16_t> &axes = plan_.groups[static_cast<size_t>(op.group)].axes;
  for (const AxisRange &range : part_.where)
    if (std::ranges::find(axes, range.axis) == axes.end())
      number = mixed(mixed(number, range.axis), static_cast<uint64_t>(range.begin));
  return number;
}

void ValueNumbers::addMeetings(const Meetings &more, uint64_t times) {
  for (const auto &[queue, count] : more)
    meetings_[queue] += times * count;
}

uint64_t ValueNumbers::ofMeetings(const Meetings &again) const {
  uint64_t number = 0;
  for (const auto &[queue, count] : again) {
    auto at = meetings_.find(queue);
    number = mixed(mixed(number, static_cast<uint64_t>(queue.first)),
                   static_cast<uint64_t>(queue.second));
    number = mixed(number, at == meetings_.end() ? 0 : at->second);
  }
  return number;
}

namespace {

/// Known runs of a segment; programs of the compiler need three or four.
constexpr size_t kRunsKnown = 16;

} // namespace

RunStart::RunStart(uint64_t context, const Variant &variant, const Holds &taken,
                   const std::vector<int64_t> &about) {
  auto add = [&](int64_t number) {
    auto at = std::ranges::lower_bound(numbers_, number);
    if (at == numbers_.end() || *at != number)
      numbers_.insert(at, number);
  };
  for (int64_t microbatch : about)
    add(microbatch), add(microbatch + 1);
  for (const Held &held : taken)
    if (held.mark.cover.kind == Cover::Some)
      add(held.mark.cover.begin), add(held.mark.cover.end);
  words_ = {context, static_cast<uint64_t>(variant.microbatch),
            static_cast<uint64_t>(variant.count)};
  words_.reserve(words_.size() + about.size() + 3 * taken.size());
  for (int64_t microbatch : about)
    words_.push_back(static_cast<uint64_t>(placeOf(microbatch)));
  for (const Held &held : taken) {
    Mark mark = ordered(held.mark);
    static_assert(sizeof(Axes) == 2, "three sets of axes take 48 bits");
    words_.push_back(mark.varies | uint64_t{mark.split} << 16 | uint64_t{mark.due} << 32 |
                     static_cast<uint64_t>(mark.cover.kind) << 48 |
                     static_cast<uint64_t>(mark.phase) << 52 |
                     static_cast<uint64_t>(mark.evaluation) << 54);
    words_.push_back(static_cast<uint32_t>(mark.block) |
                     uint64_t{std::bit_cast<uint32_t>(mark.multiple)} << 32);
    words_.push_back(static_cast<uint64_t>(mark.cover.begin) << 32 |
                     static_cast<uint64_t>(mark.cover.end));
  }
}

int64_t RunStart::placeOf(int64_t number) const {
  return std::ranges::lower_bound(numbers_, number) - numbers_.begin();
}

Mark RunStart::ordered(Mark mark) const {
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Some, placeOf(mark.cover.begin), placeOf(mark.cover.end)};
  return mark;
}

Mark RunStart::numbered(Mark mark) const {
  auto numberAt = [&](int64_t place) { return numbers_[static_cast<size_t>(place)]; };
  if (mark.cover.kind == Cover::Some)
    mark.cover = {Cover::Some, numberAt(mark.cover.begin), numberAt(mark.cover.end)};
  return mark;
}

std::shared_ptr<const KnownRun> KnownRuns::find(uint32_t segment, const RunStart &start) const {
  for (const std::shared_ptr<const KnownRun> &run : runs_[segment])
    if (run->start.doesAs(start))
      return run;
  return nullptr;
}

void KnownRuns::keep(uint32_t segment, std::shared_ptr<const KnownRun> run) {
  if (runs_[segment].size() == kRunsKnown)
    runs_[segment].clear();
  runs_[segment].push_back(std::move(run));
}

uint64_t standInFor(size_t boundary) { return mixed(0x7461'6b65'6e20'6174u, boundary); }

} // namespace shardc::plan::verifier
