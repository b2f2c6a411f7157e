// Finds the microbatches of a segment that execute alike, by the intervals of its predicates, and
// the variants that a program executes.
#include "runtime/plan/Variants.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "runtime/plan/Limits.h"

namespace shardc::plan {

namespace {

/// Microbatches `first` to `last`: one interval of predicate number `pred`.
struct Interval {
  int64_t first, last;
  size_t pred;
};

/// The intervals of all distinct predicates of a segment that name microbatches, sorted by first
/// microbatch.
std::vector<Interval> intervalsOf(const Segment &segment) {
  std::vector<Pred> preds;
  auto add = [&](const Pred &pred) {
    if (pred.hasNumbers())
      preds.push_back(pred);
  };
  for (const Op &op : segment.ops) {
    add(op.pred);
    for (const Tie &tie : op.ties)
      add(tie.pred);
  }
  auto fields = [](const Pred &pred) {
    return std::tuple(pred.begin, pred.last, pred.period, pred.until, pred.kind);
  };
  std::ranges::sort(preds, {}, fields);
  preds.erase(std::unique(preds.begin(), preds.end()), preds.end());
  std::vector<Interval> intervals;
  for (size_t i = 0; i < preds.size(); ++i)
    for (int64_t first = preds[i].begin, length = preds[i].last - preds[i].begin;
         first <= preds[i].end(); first += preds[i].period) {
      intervals.push_back({first, std::min(first + length, preds[i].end()), i});
      if (preds[i].period == 0)
        break;
    }
  std::ranges::stable_sort(intervals, {}, &Interval::first);
  return intervals;
}

} // namespace

VariantTable::VariantTable(const Segment &segment) : isBody_(segment.body) {
  std::vector<Interval> intervals = intervalsOf(segment);
  for (const Interval &each : intervals) {
    cuts_.push_back(each.first);
    cuts_.push_back(each.last + 1);
  }
  std::ranges::sort(cuts_);
  auto twice = std::unique(cuts_.begin(), cuts_.end());
  cuts_.erase(twice, cuts_.end());
  // There are as many intervals as groups of microbatches, but few of them contain the same
  // microbatch.
  std::map<std::vector<size_t>, size_t> known; // class numbers, by the predicates that hold
  std::vector<size_t> holding;                 // intervals that contain the current microbatch
  size_t begun = 0;
  for (size_t i = 0; i <= cuts_.size() && !cuts_.empty(); ++i) {
    int64_t number = i == 0 ? cuts_.front() - 1 : cuts_[i - 1];
    std::erase_if(holding, [&](size_t at) { return intervals[at].last < number; });
    for (; begun < intervals.size() && intervals[begun].first <= number; ++begun)
      if (number <= intervals[begun].last)
        holding.push_back(begun);
    std::vector<size_t> preds;
    for (size_t at : holding)
      preds.push_back(intervals[at].pred);
    std::ranges::sort(preds);
    classes_.push_back(known.emplace(std::move(preds), known.size()).first->second);
  }
  firstCuts_.resize(known.size(), std::numeric_limits<int64_t>::max());
  for (int64_t cut :
       cuts_) // microbatch 0 always is a variant of its own, so boundaries count from 1
    firstCuts_[classOf(std::max<int64_t>(cut, 1))] =
        std::min(firstCuts_[classOf(std::max<int64_t>(cut, 1))], cut);
}

size_t VariantTable::classOf(int64_t microbatch) const {
  auto behind = std::ranges::upper_bound(cuts_, microbatch);
  return classes_[static_cast<size_t>(behind - cuts_.begin())];
}

Variant VariantTable::of(int64_t microbatch, int64_t count) const {
  if (!isBody_)
    return Variant::Only;
  Variant own{microbatch, count};
  if (cuts_.empty())
    return count == 1      ? Variant::Only
           : own.isFirst() ? Variant::First
           : own.isLast()  ? Variant::Last
                           : Variant::Middle;
  if (own.isFirst() || own.isLast())
    return own;
  size_t like = classOf(microbatch);
  if (classOf(1) == like) // microbatch 1 is the first candidate to represent the class
    return {1, count};
  return {std::min(firstCuts_[like], microbatch), count};
}

int64_t VariantTable::iterationsAlike(const MicrobatchNumber &number, int64_t iteration,
                                      int64_t count) const {
  if (!isBody_ || number.coef == 0)
    return std::numeric_limits<int64_t>::max();
  int64_t microbatch = number.at(iteration), last = count - 1;
  if (number.coef < 0 || microbatch <= 0 || microbatch >= last)
    return 1;
  auto cut = std::ranges::upper_bound(cuts_, microbatch);
  int64_t until = cut == cuts_.end() ? last : std::min(*cut, last);
  return (until - microbatch + number.coef - 1) / number.coef;
}

std::vector<int64_t> VariantTable::numbersFor(int64_t count) const {
  std::vector<int64_t> numbers = {0, 1, count - 1};
  numbers.insert(numbers.end(), cuts_.begin(), cuts_.end());
  std::erase_if(numbers, [&](int64_t number) { return number < 0 || number >= count; });
  return numbers;
}

namespace {

/// Marks the segments whose runs name their microbatch. Returns the highest number that they name.
int64_t markNamed(const std::vector<ProgramNode> &nodes, int64_t iterations,
                  std::vector<int64_t> &isNamed) {
  int64_t most = 0;
  for (const ProgramNode &node : nodes)
    if (node.kind == ProgramNode::Loop) {
      most = std::max(most, markNamed(node.children, node.count, isNamed));
    } else if (node.kind == ProgramNode::Run && node.microbatch) {
      isNamed[node.segment] = 1;
      most = std::max({most, node.microbatch->at(0), node.microbatch->at(iterations - 1)});
    }
  return most;
}

} // namespace

std::vector<int64_t> namedMicrobatches(const Role &role, const std::vector<ProgramNode> &nodes) {
  std::vector<int64_t> counts(role.segments.size());
  const int64_t most = markNamed(nodes, 1, counts);
  for (int64_t &count : counts)
    count *= most + 1;
  return counts;
}

bool shareMicrobatches(const Role &role, uint32_t a, uint32_t b) {
  return std::ranges::any_of(role.program, [&](const ProgramNode &top) {
    std::set<int64_t> ofA, ofB;
    if (top.kind != ProgramNode::Steps)
      return false;
    const bool areApart = forEachRun(top.children, [&](const ProgramNode &run, int64_t turn) {
      if (!run.microbatch || (run.segment != a && run.segment != b))
        return true;
      const int64_t number = run.microbatch->at(turn);
      (run.segment == a ? ofA : ofB).insert(number);
      return !ofA.contains(number) || !ofB.contains(number);
    });
    return areApart && !ofA.empty() && !ofB.empty();
  });
}

int countSeries(const std::vector<ProgramNode> &nodes, uint32_t segment) {
  int count = 0;
  bool hasNamed = false;
  forEachRun(nodes, [&](const ProgramNode &node, int64_t) {
    hasNamed = hasNamed || (node.segment == segment && node.microbatch);
    return !hasNamed;
  });
  for (const ProgramNode &node : nodes) {
    count += node.segment == segment && !node.microbatch;
    if (node.kind != ProgramNode::Loop)
      count += countSeries(node.children, segment);
  }
  return count + hasNamed;
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

  /// Nodes for which the run has too few steps count too, since a run may consist of evaluations
  /// only.
  void collect(const std::vector<ProgramNode> &nodes) {
    std::vector<int64_t> named = namedMicrobatches(role_, nodes);
    for (const ProgramNode &node : nodes) {
      if (node.kind == ProgramNode::Loop)
        takeLoop(node, named);
      else if (node.kind == ProgramNode::Run && node.microbatch)
        take(node.segment, node.microbatch->at(0), named[node.segment]);
      else if (node.kind == ProgramNode::Run)
        takePlain(node);
      else if (node.kind == ProgramNode::Start)
        take(node.segment, 0, 1);
      else if (node.kind == ProgramNode::Steps || node.kind == ProgramNode::Every)
        collect(node.children);
    }
  }

  std::vector<std::vector<SegmentInstance>> finish() {
    for (size_t s = 0; s < taken_.size(); ++s) {
      if (role_.segments[s].before != kNone)
        take(static_cast<uint32_t>(s), 0, 1);
      // Instances are sorted by microbatch, with Only last.
      std::ranges::sort(taken_[s], {}, [](const SegmentInstance &each) {
        const Variant &v = each.variant;
        return std::tuple(v == Variant::Only, v.microbatch, v.count, each.slot);
      });
    }
    return std::move(taken_);
  }

private:
  /// Takes as many equal iterations of a loop as there are ring slots.
  void takeLoop(const ProgramNode &loop, const std::vector<int64_t> &named) {
    for (const ProgramNode &node : loop.children) {
      if (node.kind == ProgramNode::Loop)
        takeLoop(node, named);
      if (node.kind != ProgramNode::Run)
        continue;
      if (!node.microbatch) {
        takePlain(node);
        continue;
      }
      int64_t count = named[node.segment];
      for (int64_t iteration = 0; iteration < loop.count;) {
        int64_t alike =
            std::min(tables_[node.segment].iterationsAlike(*node.microbatch, iteration, count),
                     loop.count - iteration);
        for (int64_t i = 0; i < std::min(alike, slots_[node.segment]); ++i)
          take(node.segment, node.microbatch->at(iteration + i), count);
        iteration += alike;
      }
    }
  }

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
  std::vector<int64_t> slots_; ///< by segment
  std::set<std::tuple<uint32_t, Variant, int64_t>> seen_;
  std::vector<std::vector<SegmentInstance>> taken_;
};

} // namespace

std::vector<std::vector<SegmentInstance>> instancesOfProgram(const Role &role) {
  Collector collector(role);
  collector.collect(role.program);
  return collector.finish();
}

std::vector<std::vector<Variant>> variantsOfProgram(const Role &role) {
  std::vector<std::vector<Variant>> variants;
  for (const std::vector<SegmentInstance> &instances : instancesOfProgram(role)) {
    std::vector<Variant> &own = variants.emplace_back();
    for (const SegmentInstance &instance : instances) // instances of one variant are adjacent
      if (own.empty() || own.back() != instance.variant)
        own.push_back(instance.variant);
  }
  return variants;
}

int64_t slotsOf(const Role &role, const Segment &segment) {
  int64_t slots = 1;
  // From this number of slots on, every microbatch has addresses of its own.
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
