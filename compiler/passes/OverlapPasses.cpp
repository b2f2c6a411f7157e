// Joins the passes of a cell of the schedule, a forward and a backward pass of two microbatches, to
// one segment. Its ops run in the order of predicted times, so the exchanges of one pass, as those
// of experts' rows, hide behind the products of the other. Passes that run apart elsewhere in a
// step keep segments of their own.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/passes/Passes.h"
#include "compiler/passes/PipelineStages.h"
#include "compiler/passes/StageSchedule.h"
#include "compiler/passes/StageSegment.h"
#include "compiler/passes/TransferOrder.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Pred;
using plan::ProgramNode;
using plan::Segment;

/// The predicate that holds for microbatch i where `pred` holds for i + shift, of `count`
/// microbatches; the shift is not positive.
Pred shifted(Pred pred, int64_t shift, int64_t count) {
  if (!pred.hasNumbers())
    return Runs{-shift, count - 1 - shift, count}.like(pred);
  pred.begin -= shift, pred.last -= shift;
  pred.until -= pred.period > 0 ? shift : 0;
  return pred;
}

/// A segment to which passes of one or several microbatches are appended.
class Joint {
public:
  /// `readers`: by cell, the number of passes that read it. `runs`: the microbatches that the
  /// segment runs; a step has `count`.
  Joint(const plan::Role &role, const std::vector<int32_t> &readers,
        const std::vector<int64_t> &runs, int64_t count)
      : role_(role), readers_(readers), runs_(runs), count_(count) {
    joined_.body = true;
  }

  /// The pass is of the microbatch `shift` after that of the segment.
  void append(const Segment &pass, int64_t shift) {
    indexOf_.clear();
    for (const plan::Value &value : pass.values) {
      indexOf_.push_back(static_cast<ValueId>(joined_.values.size()));
      joined_.values.push_back(value);
      std::string &name = joined_.values.back().name;
      while (!names_.insert(name).second)
        name += ".2";
    }
    const std::vector<ValueId> own = indexOf_;
    for (Segment::Boundary in : pass.ins) {
      move(in, shift);
      if (const ValueId *now = contentOf(in)) {
        indexOf_[in.value] = *now;
        // Other passes may read it too, as gradients of weights read what those of inputs leave.
        if (readers_[in.cell] == 1)
          std::erase_if(joined_.outs, [&](const auto &each) { return isSame(each, in); });
      } else {
        in.value = indexOf_[in.value], joined_.ins.push_back(in);
      }
    }
    for (ValueId value = 0; value < own.size(); ++value)
      if (ValueId counts = pass.values[value].counts; counts != kNone)
        joined_.values[own[value]].counts = indexOf_[counts];
    for (const Op &op : pass.ops)
      add(op, shift);
    for (Segment::Boundary out : pass.outs) {
      move(out, shift);
      out.value = indexOf_[out.value];
      std::erase_if(joined_.outs, [&](const auto &each) { return isSame(each, out); });
      joined_.outs.push_back(out);
    }
  }

  size_t size() const { return joined_.ops.size(); } ///< ops

  Segment take() && {
    // What no op changes stays in its cell; what none reads need not be there.
    std::erase_if(joined_.outs, [&](const Segment::Boundary &out) {
      return std::ranges::any_of(joined_.ins, [&](const Segment::Boundary &in) {
        return in.value == out.value && isSame(in, out);
      });
    });
    std::vector<uint8_t> isUsed = readValues(joined_);
    for (const plan::Value &value : joined_.values)
      if (value.counts != kNone)
        isUsed[value.counts] = 1;
    std::erase_if(joined_.ins, [&](const auto &in) { return isUsed[in.value] == 0; });
    plan::renumber(joined_);
    return std::move(joined_);
  }

private:
  void add(Op op, int64_t shift) {
    op.pred = shifted(op.pred, shift, count_);
    for (plan::Tie &tie : op.ties) {
      tie.pred = shifted(tie.pred, shift, count_);
      tie.value = indexOf_[tie.value];
    }
    for (ValueId &operand : op.operands)
      operand = indexOf_[operand];
    bool isRun = std::ranges::any_of(runs_, [&](int64_t run) {
      return plan::holds(op.pred, {run, count_});
    });
    if (!isRun && !op.results.empty() && op.ties.size() == op.results.size() &&
        std::ranges::all_of(op.ties,
                            [](const plan::Tie &tie) { return tie.kind == plan::Tie::Else; })) {
      for (const plan::Tie &tie : op.ties)
        indexOf_[op.results[tie.result]] = tie.value;
      return;
    }
    for (ValueId &result : op.results)
      result = indexOf_[result];
    joined_.ops.push_back(std::move(op));
  }

  void move(Segment::Boundary &boundary, int64_t shift) const {
    boundary.shift += role_.cells[boundary.cell].isRing() ? shift : 0;
  }
  /// Whether both name the same slot of the same cell.
  bool isSame(const Segment::Boundary &a, const Segment::Boundary &b) const {
    return a.cell == b.cell && (a.shift - b.shift) % role_.cells[a.cell].slots == 0;
  }
  /// The value that the slot has after the passes so far; null if they do not name it.
  const ValueId *contentOf(const Segment::Boundary &in) const {
    for (const auto *boundaries : {&joined_.outs, &joined_.ins})
      for (const Segment::Boundary &each : *boundaries)
        if (isSame(each, in))
          return &each.value;
    return nullptr;
  }

  const plan::Role &role_;
  const std::vector<int32_t> &readers_;
  Segment joined_;
  const std::vector<int64_t> &runs_;
  int64_t count_;
  std::set<std::string> names_;
  std::vector<ValueId> indexOf_; ///< by value of the pass
};

/// Joins the passes of a stage's cells.
class CellJoiner {
public:
  CellJoiner(const plan::Plan &plan, plan::Role &role, const StageSchedule &schedule, int32_t stage)
      : plan_(plan), role_(role), passes_(schedule.passes(stage)), count_(schedule.microbatches()),
        readers_(role.cells.size()) {
    for (const Segment &segment : role.segments) {
      std::set<uint32_t> read;
      for (const Segment::Boundary &in : segment.ins)
        readers_[in.cell] += read.insert(in.cell).second ? 1 : 0;
    }
    for (size_t i = 0; i < passes_.size(); i += sizeAt(i))
      runs_[keyAt(i)].push_back(passes_[i].microbatch);
  }

  void run() {
    for (ProgramNode &node : role_.program)
      if (node.kind == ProgramNode::Steps) {
        size_t at = 0;
        walk(node.children, at);
      }
  }

private:
  using Key = std::pair<std::vector<StagePart>, int64_t>; ///< parts, and the distance of the others

  size_t sizeAt(size_t i) const {
    size_t end = i;
    while (passes_[end].isPair)
      ++end;
    return end + 1 - i;
  }
  Key keyAt(size_t i) const {
    Key key;
    for (size_t k = i; k < i + sizeAt(i); ++k)
      key.first.push_back(passes_[k].part);
    key.second = passes_[i + sizeAt(i) - 1].microbatch - passes_[i].microbatch;
    return key;
  }

  /// Follows the runs of training in the order of the passes. `at`: the next pass.
  void walk(std::vector<ProgramNode> &nodes, size_t &at) {
    std::vector<ProgramNode> all = std::exchange(nodes, {});
    for (size_t i = 0; i < all.size(); ++i) {
      ProgramNode &node = nodes.emplace_back(all[i]);
      if (node.kind == ProgramNode::Loop) {
        const size_t begin = at;
        walk(node.children, at);
        at = begin + (at - begin) * static_cast<size_t>(node.count);
      } else if (node.kind == ProgramNode::Run && node.microbatch) {
        SHARDC_CHECK(at < passes_.size() && i + sizeAt(at) <= all.size(),
                     "a program runs other passes than the job's schedule has");
        if (const size_t size = sizeAt(at); size > 1)
          node.segment = joinedOf(at, std::span(all).subspan(i, size)), i += size - 1, at += size;
        else
          ++at;
      }
    }
  }

  uint32_t joinedOf(size_t at, std::span<const ProgramNode> nodes) {
    const Key key = keyAt(at);
    auto [known, isNew] = joined_.try_emplace(key, static_cast<uint32_t>(role_.segments.size()));
    if (!isNew)
      return known->second;
    const int64_t shift = key.second;
    Joint joint(role_, readers_, runs_.at(key), count_);
    joint.append(role_.segments[nodes[0].segment], 0);
    const size_t second = joint.size();
    for (const ProgramNode &node : nodes.subspan(1))
      joint.append(role_.segments[node.segment], shift);
    Segment joined = std::move(joint).take();
    joined.name = fmt::format("{}.{}", role_.segments[nodes[0].segment].name,
                              role_.segments[nodes[1].segment].name);
    while (std::ranges::count(role_.segments, joined.name, &Segment::name) > 0)
      joined.name += ".2"; // the same passes at another distance
    joined.kind = plan::SegmentKind::Steady;
    joined.shift = shift;
    interleave(plan_, joined, second);
    plan::dropUnusedValues(joined);
    role_.segments.push_back(std::move(joined));
    return known->second;
  }

  const plan::Plan &plan_;
  plan::Role &role_;
  const std::vector<StagePass> &passes_;
  int64_t count_;
  std::vector<int32_t> readers_; ///< by cell: the number of passes that read it
  std::map<Key, std::vector<int64_t>> runs_;
  std::map<Key, uint32_t> joined_; ///< segments
};

} // namespace

void runOverlapPasses(plan::Plan &plan, Notes &) {
  if (std::cmp_not_equal(plan.roles.size(), plan.job.model.pipelineModelParallelSize) ||
      (plan.roles.size() == 1 && !plan.job.model.overlapMoeExpertParallelComm))
    return;
  const PassOrder order = passOrderOf(plan.job);
  if (std::ranges::none_of(order.rows, [](const std::vector<StagePass> &row) {
        return std::ranges::any_of(row, &StagePass::isPair);
      }))
    return;
  const StageSchedule schedule(order);
  for (size_t stage = 0; stage < plan.roles.size(); ++stage)
    CellJoiner(plan, plan.roles[stage], schedule, static_cast<int32_t>(stage)).run();
}

} // namespace shardc::passes
