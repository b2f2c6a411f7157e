// Copies activations to the host's memory as soon as they are computed, and back while the backward
// pass of the layer above computes. Ops of the backward pass read what came back, so the bytes of
// the forward value are free in between.
#include <algorithm>
#include <iterator>

#include "compiler/passes/Clocks.h"
#include "compiler/passes/HostValues.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

class Mover {
public:
  Mover(plan::Plan &plan, plan::Segment &segment)
      : plan_(plan), segment_(segment), layers_(hostLayersOf(plan, segment, /*onlyNamed=*/false)),
        behind_(segment.ops.size()), before_(segment.ops.size()),
        backOf_(segment.values.size(), kNone) {}

  void run() {
    findFirsts();
    for (ValueId value = 0; value < layers_.size(); ++value)
      if (layers_[value] >= 0)
        move(value);
    if (moved_ > 0)
      rebuild();
  }

  int64_t moved() const { return moved_; }
  int64_t bytes() const { return bytes_; }

private:
  /// Finds the first compute op of each unit's backward pass, and the first op there that names a
  /// moved value.
  void findFirsts() {
    firstOf_.assign(plan_.units.size(), kNone);
    firstUse_.assign(layers_.size(), kNone);
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      const Op &op = segment_.ops[i];
      if (op.phase != plan::Phase::Backward)
        continue;
      for (ValueId operand : op.operands)
        if (ValueId root = rootOf(segment_, operand); layers_[root] >= 0)
          firstUse_[root] = std::min(firstUse_[root], i);
      bool isCompute = !isAlias(op) && plan::opInfo(op).traits != plan::OpTraits::Collective;
      if (isCompute && op.unit >= 0 && firstOf_[static_cast<size_t>(op.unit)] == kNone)
        firstOf_[static_cast<size_t>(op.unit)] = i;
    }
  }

  void move(ValueId value) {
    const uint32_t def = segment_.values[value].def;
    const ValueId host = likeValue(value, ".host"), back = likeValue(value, ".back");
    behind_[def].push_back(copy(OpKind::ToHost, plan::StreamKind::ToHost, value, host, value));
    Op toDevice = copy(OpKind::ToDevice, plan::StreamKind::ToDevice, host, back, value);
    toDevice.phase = plan::Phase::Backward;
    const uint32_t above = firstOf_[static_cast<size_t>(layerAfter(plan_, layers_[value]))];
    if (above > def && above < firstUse_[value])
      behind_[above].push_back(std::move(toDevice));
    else
      before_[firstUse_[value]].push_back(std::move(toDevice));
    backOf_[value] = back;
    ++moved_;
    bytes_ += segment_.values[value].type.bytes();
  }

  ValueId likeValue(ValueId value, const char *suffix) {
    const plan::Value like = segment_.values[value];
    ValueId added = plan::addValue(segment_, like.name + suffix, like.type, like.purpose);
    segment_.values[added].counts = like.counts;
    return added;
  }

  Op copy(OpKind kind, plan::StreamKind stream, ValueId from, ValueId to, ValueId value) {
    Op op =
        plan::makeOp(kind, {from}, layers_[value], segment_.ops[segment_.values[value].def].loc);
    op.phase = plan::Phase::Forward;
    op.stream = plan::streamOf(plan_, stream);
    op.results = {to};
    return op;
  }

  void rebuild() {
    std::vector<Op> ops;
    for (uint32_t i = 0; i < segment_.ops.size(); ++i) {
      std::ranges::move(before_[i], std::back_inserter(ops));
      Op op = segment_.ops[i];
      if (op.phase == plan::Phase::Backward)
        for (ValueId &operand : op.operands)
          operand = broughtBack(operand, ops);
      ops.push_back(std::move(op));
      std::ranges::move(behind_[i], std::back_inserter(ops));
    }
    plan::replaceOps(segment_, std::move(ops));
  }

  /// What the backward pass reads in place of a value: a moved value's copy on the device, or a
  /// view of it.
  ValueId broughtBack(ValueId value, std::vector<Op> &ops) {
    if (value >= backOf_.size() || backOf_[value] != kNone)
      return value >= backOf_.size() ? value : backOf_[value];
    const uint32_t def = segment_.values[value].def;
    if (layers_[rootOf(segment_, value)] < 0 || segment_.ops[def].phase == plan::Phase::Backward)
      return value;
    Op view = segment_.ops[def];
    view.operands[0] = broughtBack(view.operands[0], ops);
    view.phase = plan::Phase::Backward;
    backOf_[value] = view.results[0] = likeValue(value, ".back");
    ops.push_back(std::move(view));
    return backOf_[value];
  }

  plan::Plan &plan_;
  plan::Segment &segment_;
  const std::vector<int32_t> layers_;            ///< by value: the layer that moves it, or -1
  std::vector<std::vector<Op>> behind_, before_; ///< by op: copies that follow it, or precede it
  std::vector<ValueId> backOf_;
  std::vector<uint32_t> firstOf_, firstUse_;
  int64_t moved_ = 0, bytes_ = 0;
};

} // namespace

void runOffload(plan::Plan &plan, Notes &notes) {
  if (plan.job.model.offloadLayers.empty())
    return;
  int64_t moved = 0, bytes = 0;
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments) {
      Mover mover(plan, segment);
      mover.run();
      moved += mover.moved(), bytes += mover.bytes();
    }
  notes.push_back({moved > 0 ? fmt::format("{} values of each microbatch, {}, lie in the host's "
                                           "memory between forward and backward pass",
                                           moved, plan::formatBytes(bytes))
                             : fmt::format("'model.offload_layers' moves nothing: the layers keep "
                                           "no such value of {} elements",
                                           plan.job.derived.offloadMinElements),
                   "offloaded", plan::kNone});
}

} // namespace shardc::passes
