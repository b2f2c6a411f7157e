#include "runtime/plan/Variants.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "runtime/plan/Limits.h"

namespace shardc::plan {

VariantTable::VariantTable(const Segment &segment) : isBody_(segment.body) {
  auto add = [&](const Pred &pred) {
    if (pred.kind != Pred::Kind::Within || std::ranges::find(within_, pred) != within_.end())
      return;
    within_.push_back(pred);
    cuts_.push_back(pred.begin);
    cuts_.push_back(pred.last + 1);
  };
  for (const Op &op : segment.ops) {
    add(op.pred);
    for (const Tie &tie : op.ties)
      add(tie.pred);
  }
  std::ranges::sort(cuts_);
}

bool VariantTable::isAlike(const Variant &a, const Variant &b) const {
  return a.isFirst() == b.isFirst() && a.isLast() == b.isLast() &&
         std::ranges::all_of(within_,
                             [&](const Pred &pred) { return holds(pred, a) == holds(pred, b); });
}

Variant VariantTable::of(int64_t microbatch, int64_t count) const {
  if (!isBody_)
    return Variant::Only;
  Variant own{microbatch, count};
  if (within_.empty())
    return count == 1      ? Variant::Only
           : own.isFirst() ? Variant::First
           : own.isLast()  ? Variant::Last
                           : Variant::Middle;
  if (own.isFirst() || own.isLast())
    return own;
  for (int64_t cut : cuts_) // the least number that executes alike begins at one
    if (Variant other{std::max<int64_t>(cut, 1), count}; cut < microbatch && isAlike(own, other))
      return other;
  Variant second{1, count};
  return isAlike(own, second) ? second : own;
}

std::vector<int64_t> VariantTable::numbersFor(int64_t count) const {
  std::vector<int64_t> numbers = {0, 1, count - 1};
  numbers.insert(numbers.end(), cuts_.begin(), cuts_.end());
  std::erase_if(numbers, [&](int64_t number) { return number < 0 || number >= count; });
  return numbers;
}

std::vector<int64_t> namedRuns(const Role &role, const std::vector<ProgramNode> &nodes) {
  std::vector<int64_t> runs(role.segments.size());
  for (const ProgramNode &node : nodes) {
    if (node.kind == ProgramNode::Run && node.microbatch)
      ++runs[node.segment];
    if (node.kind != ProgramNode::Loop)
      continue;
    std::vector<int64_t> inside = namedRuns(role, node.children);
    for (size_t s = 0; s < runs.size(); ++s)
      runs[s] += inside[s] * node.count;
  }
  return runs;
}

namespace {

class Collector {
public:
  explicit Collector(const Role &role) : role_(role), taken_(role.segments.size()) {
    for (const Segment &segment : role.segments) {
      tables_.emplace_back(segment);
      slots_.push_back(slotsOf(role, segment));
    }
  }

  void collect(const std::vector<ProgramNode> &nodes, int64_t steps) {
    std::vector<int64_t> named = namedRuns(role_, nodes);
    forEachRun(nodes, [&](const ProgramNode &node, int64_t turn) {
      if (node.microbatch)
        take(node.segment, node.microbatch->at(turn), named[node.segment]);
      else
        takePlain(node);
      return true;
    });
    for (const ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Start)
        take(node.segment, 0, 1);
      else if (node.kind == ProgramNode::Steps)
        collect(node.children, node.count);
      else if (node.kind == ProgramNode::Every && node.count <= steps)
        collect(node.children, steps);
    }
  }

  std::vector<std::vector<SegmentInstance>> finish() {
    for (size_t s = 0; s < taken_.size(); ++s) {
      if (role_.segments[s].before != kNone)
        take(static_cast<uint32_t>(s), 0, 1);
      // In order of their microbatches, where Only is last.
      std::ranges::sort(taken_[s], {}, [](const SegmentInstance &each) {
        const Variant &v = each.variant;
        return std::tuple(v == Variant::Only, v.microbatch, v.count, each.slot);
      });
    }
    return std::move(taken_);
  }

private:
  void takePlain(const ProgramNode &node) {
    int64_t count = role_.segments[node.segment].body ? node.count : 1;
    if (slots_[node.segment] == 1)
      for (int64_t number : tables_[node.segment].numbersFor(count))
        take(node.segment, number, count);
    else
      for (int64_t number = 0; number < count; ++number)
        take(node.segment, number, count);
  }

  void take(uint32_t segment, int64_t microbatch, int64_t count) {
    SegmentInstance instance{tables_[segment].of(microbatch, count), microbatch % slots_[segment]};
    if (seen_.emplace(segment, instance.variant, instance.slot).second)
      taken_[segment].push_back(instance);
  }

  const Role &role_;
  std::vector<VariantTable> tables_;
  std::vector<int64_t> slots_; ///< of each segment
  std::set<std::tuple<uint32_t, Variant, int64_t>> seen_;
  std::vector<std::vector<SegmentInstance>> taken_;
};

} // namespace

std::vector<std::vector<SegmentInstance>> instancesOfProgram(const Role &role) {
  Collector collector(role);
  collector.collect(role.program, 1);
  return collector.finish();
}

std::vector<std::vector<Variant>> variantsOfProgram(const Role &role) {
  std::vector<std::vector<Variant>> variants;
  for (const std::vector<SegmentInstance> &instances : instancesOfProgram(role)) {
    std::vector<Variant> &own = variants.emplace_back();
    for (const SegmentInstance &instance : instances)
      if (std::ranges::find(own, instance.variant) == own.end())
        own.push_back(instance.variant);
  }
  return variants;
}

int64_t slotsOf(const Role &role, const Segment &segment) {
  int64_t slots = 1;
  // Beyond the largest number of microbatches all of them are at places of their own.
  auto join = [&](int64_t own) {
    if (own > 1)
      slots = std::min(std::lcm(slots, own), limits::kMicrobatchesMax);
  };
  auto add = [&](const Segment::Boundary &boundary) { join(role.cells[boundary.cell].slots); };
  std::ranges::for_each(segment.ins, add);
  std::ranges::for_each(segment.outs, add);
  for (const Value &value : segment.values)
    join(value.place.slots);
  return slots;
}

} // namespace shardc::plan
