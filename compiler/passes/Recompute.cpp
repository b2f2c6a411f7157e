// Recomputation of activations (Megatron's recompute_granularity). If a backward op reads an
// activation of a recomputed region, it reads a copy, which is recomputed just before the op from
// the values that the region keeps. The copies are computed by the same ops with the same
// attributes, so results are bitwise equal.
//
// Gathered activations are always gathered again rather than kept, and weights are dequantised for
// each product.
//
// auto: `model.recompute_layers` says for each layer what is recomputed; ChooseRecompute.cpp
// chooses it.
// full: a region is `recompute_num_layers` layers of a stage (method uniform), or each of the first
// `recompute_num_layers` layers of a stage (method block). It keeps only its input.
// selective: only the ops of the chosen modules are recomputed, from their operands.
//
// The choices of routers, and the counts and positions of rows, are always kept: they are small,
// and both passes must have the same rows.
#include <algorithm>

#include "compiler/model/LayerList.h"
#include "compiler/passes/HostValues.h"
#include "compiler/passes/Passes.h"
#include "compiler/passes/PipelineStages.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using plan::Job;

plan::Recompute classOf(const Op &op) { return plan::opInfo(op).recompute; }
bool isFusedNorm(const Op &op) { return classOf(op) == plan::Recompute::FusedNorm; }

/// What is recomputed, by unit.
struct Request {
  std::vector<int32_t> region; ///< region of the unit; -1: keeps everything
  std::vector<model::LayerParts> what;
  std::vector<uint8_t> predicts; ///< whether it is a multi-token prediction block, with losses
};

/// Makes each layer with recomputation a region of its own.
void addChosenLayers(const plan::Plan &plan, Request &request) {
  std::vector<size_t> units;
  for (size_t unit = 0; unit < plan.units.size(); ++unit)
    if (isLayer(plan, static_cast<int32_t>(unit)))
      units.push_back(unit);
  if (plan.job.model.recomputeLayers.empty())
    return; // not chosen yet
  model::LayerList read =
      model::readLayerList(plan.job.model.recomputeLayers, static_cast<int64_t>(units.size()));
  SHARDC_CHECK(read.isValid(), "'model.recompute_layers': {}", read.problem);
  int32_t regions = 0;
  for (size_t layer = 0; layer < units.size(); ++layer) {
    request.what[units[layer]] = read.layers[layer];
    request.region[units[layer]] = read.layers[layer].isNothing() ? -1 : regions++;
  }
}

/// Which units are recomputed, and in which regions. Megatron's method `block` recomputes the first
/// `count` layers of a stage, each as a region; `uniform` recomputes all layers, in regions of
/// `count` layers.
Request readRequest(const plan::Plan &plan) {
  Request request;
  request.region.assign(plan.units.size(), -1);
  request.what.resize(plan.units.size());
  for (const plan::Unit &unit : plan.units)
    request.predicts.push_back(unit.kind == plan::UnitKind::Prediction);
  const plan::Job::Model &model = plan.job.model;
  if (!model.recomputeGranularity)
    return request;
  if (model.recomputeGranularity == Job::RecomputeGranularity::Auto) {
    addChosenLayers(plan, request);
    return request;
  }
  model::LayerParts what = {.isFull =
                                model.recomputeGranularity == Job::RecomputeGranularity::Full};
  if (!what.isFull)
    for (Job::RecomputeModule module : model.recomputeModules)
      what.modules |= uint32_t{1} << static_cast<int>(module);
  bool block = model.recomputeMethod == Job::RecomputeMethod::Block;
  int64_t count = model.recomputeNumLayers;
  PipelineStages stages = readStages(plan);
  int64_t layer = 0; // number of the layer in its stage
  int32_t stage = 0, regions = 0;
  for (size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (plan.units[unit].kind == plan::UnitKind::Prediction && (!what.isFull || !block)) {
      // Upstream also gives it a region of its own, except with method `block`.
      request.region[unit] = regions++;
      request.what[unit] = what;
    }
    if (!isLayer(plan, static_cast<int32_t>(unit)))
      continue;
    layer = stages.ofUnit[unit] == stage ? layer : 0;
    stage = stages.ofUnit[unit];
    bool isIn = !what.isFull || !block || layer < count;
    bool begins = !what.isFull || block || layer % count == 0;
    regions += isIn && begins ? 1 : 0;
    request.region[unit] = isIn ? regions - 1 : -1;
    request.what[unit] = what;
    ++layer;
  }
  return request;
}

class Rewriter {
public:
  /// `hostLayers`: of values that are kept on the host and not recomputed (HostValues.h).
  Rewriter(plan::Segment &segment, const Request &request, size_t forwardOps,
           const std::vector<int32_t> &hostLayers)
      : segment_(segment), request_(request), forwardOps_(forwardOps),
        copies_(segment.values.size(), kNone), regionOf_(segment.values.size(), -1),
        remade_(segment.values.size(), 0), isStream_(segment.values.size(), 0),
        hasExperts_(request.region.size(), 0) {
    for (size_t i = 0; i < forwardOps_; ++i)
      if (const Op &op = segment.ops[i]; op.kind == plan::OpKind::MakeRuns && op.unit >= 0)
        hasExperts_[static_cast<size_t>(op.unit)] = 1;
    markLosses();
    findStream();
    classify();
    for (ValueId value = 0; value < hostLayers.size(); ++value)
      if (hostLayers[value] >= 0 && !isBrought(segment.ops[segment.values[value].def]))
        remade_[value] = 0;
  }

  void run() {
    std::vector<Op> backward(
        std::make_move_iterator(segment_.ops.begin() + static_cast<std::ptrdiff_t>(forwardOps_)),
        std::make_move_iterator(segment_.ops.end()));
    segment_.ops.resize(forwardOps_);
    ops_ = segment_.ops;
    for (Op &op : backward) {
      for (ValueId &operand : op.operands)
        operand = remake(operand);
      ops_.push_back(std::move(op));
    }
    plan::replaceOps(segment_, std::move(ops_));
    plan::removeDeadOps(segment_);
  }

private:
  /// Marks the values that a region recomputes.
  void classify() {
    std::vector<uint8_t> entered(segment_.values.size(), 0); // by region: first op was seen
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      int32_t region = regionOfOp(op);
      if (isBrought(op)) {
        remade_[op.results[0]] = 1;
        regionOf_[op.results[0]] = region;
      }
      if (region < 0 || isBrought(op))
        continue;
      bool entry = entered[static_cast<size_t>(region)] == 0;
      entered[static_cast<size_t>(region)] = 1;
      for (size_t r = 0; r < op.results.size(); ++r) {
        // The sum of a fused norm is the residual stream. At the beginning of a region it is the
        // region's input, which is kept.
        bool keptSum = isFusedNorm(op) && r == 0 && (!whatOf(op).isFull || entry);
        if (keptSum || !isChosen(op) || isExchangedData(op))
          continue;
        remade_[op.results[r]] = 1;
        regionOf_[op.results[r]] = region;
      }
    }
    keepRegionInputs();
    markMlp();
    markExperts();
    markUpProjections();
  }

  /// Whether the op produces data that is gathered again instead of kept. Ranks keep only their own
  /// parts of activations, and weights only in the type with fewer bits.
  bool isBrought(const Op &op) const {
    if (plan::isDequantize(op.kind))
      return true;
    if (op.kind == plan::OpKind::MergeSlices || op.kind == plan::OpKind::Pack) {
      uint32_t def = segment_.values[op.operands[0]].def;
      return def != kNone && isBrought(segment_.ops[def]);
    }
    return (op.kind == plan::OpKind::AllGather || op.kind == plan::OpKind::Shift) &&
           segment_.values[op.results[0]].purpose != plan::Purpose::Data;
  }

  /// Whether the op exchanges row counts or expert loads. These are small, so they are kept.
  bool isExchangedData(const Op &op) const {
    return plan::opInfo(op).collective &&
           segment_.values[op.results[0]].purpose == plan::Purpose::Data;
  }

  int32_t regionOfOp(const Op &op) const {
    if (op.unit < 0)
      return -1;
    auto unit = static_cast<size_t>(op.unit);
    return request_.predicts[unit] != 0 && isOfLoss(op) ? -1 : request_.region[unit];
  }

  /// Whether the op of a multi-token prediction block computes logits, token losses, or the start
  /// of their gradients. These are never recomputed.
  bool isOfLoss(const Op &op) const {
    return !op.results.empty() && op.results[0] < isOfLoss_.size() && isOfLoss_[op.results[0]] != 0;
  }

  /// Marks logits, and the values computed from them before the backward pass.
  void markLosses() {
    if (std::ranges::find(request_.predicts, 1) == request_.predicts.end())
      return; // no unit has losses
    isOfLoss_.assign(segment_.values.size(), 0);
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      const plan::OpInfo &info = plan::opInfo(op);
      bool takesLabels = plan::positionOf(info.operands, "labels") >= 0;
      if (int logits = plan::positionOf(info.operands, "logits"); takesLabels && logits >= 0)
        isOfLoss_[op.operands[static_cast<size_t>(logits)]] = 1;
      bool reads = std::ranges::any_of(op.operands, [&](ValueId v) { return isOfLoss_[v] != 0; });
      if (takesLabels || reads)
        for (ValueId result : op.results)
          isOfLoss_[result] = 1;
    }
  }

  /// What is recomputed in the layer of an op.
  model::LayerParts whatOf(const Op &op) const {
    return request_.what[static_cast<size_t>(op.unit)];
  }

  /// Keeps the values that one region passes to another; otherwise recomputing a region would
  /// recompute everything before it. Of a fused sum and norm, only the norm is recomputed, so the
  /// terms of the sum need not be kept.
  void keepRegionInputs() {
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      if (isFusedNorm(op) && remade_[op.results[0]] == 0)
        continue;
      for (ValueId operand : op.operands)
        if (remade_[operand] != 0 && regionOf_[operand] != regionOfOp(op))
          remade_[operand] = 0;
    }
  }

  bool isChosen(const Op &op) const {
    model::LayerParts what = whatOf(op);
    switch (classOf(op)) {
    case plan::Recompute::Never:
      return false;
    case plan::Recompute::Attention:
      return what.isFull || what.has(Job::RecomputeModule::CoreAttn);
    case plan::Recompute::Norm:
    case plan::Recompute::FusedNorm:
      return what.isFull || what.has(Job::RecomputeModule::LayerNorm);
    case plan::Recompute::WithLayer:
    case plan::Recompute::Activation:
    case plan::Recompute::Product:
    case plan::Recompute::UpProjection:
    case plan::Recompute::Residual:
      return what.isFull;
    }
    return false;
  }

  /// Whether only some rows of the value are used: those that a router sent to experts.
  bool isOfExperts(ValueId value) const { return segment_.values[value].counts != kNone; }

  /// Module `mlp`: recomputes everything from the output of the second norm to the end of the
  /// layer. In a layer with experts, module `shared_experts` does so for ops that work on all rows.
  void markMlp() {
    std::vector<uint8_t> inside(segment_.values.size(), 0);
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      if (regionOfOp(op) < 0 || !isWithMlp(op))
        continue;
      bool reads = std::any_of(op.operands.begin(), op.operands.end(),
                               [&](ValueId v) { return inside[v] != 0; });
      bool activation = classOf(op) == plan::Recompute::Activation && !isOfExperts(op.results[0]);
      if (!activation && !reads)
        continue;
      if (classOf(op) == plan::Recompute::Residual || isFusedNorm(op))
        continue;
      if (activation)
        markProducers(op.operands[0], op.unit);
      for (ValueId result : op.results)
        inside[result] = remade_[result] = 1;
    }
  }

  bool isWithMlp(const Op &op) const {
    model::LayerParts what = whatOf(op);
    bool hasExperts = hasExperts_[static_cast<size_t>(op.unit)] != 0;
    return hasExperts ? what.has(Job::RecomputeModule::Moe) ||
                            what.has(Job::RecomputeModule::SharedExperts)
                      : what.has(Job::RecomputeModule::Mlp);
  }

  /// Module `moe`: recomputes everything on rows of experts. Module `moe_act`: recomputes their
  /// activation, and everything up to the next product.
  void markExperts() {
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      if (regionOfOp(op) < 0 || op.results.empty() || !isOfExperts(op.results[0]))
        continue;
      bool isWhole = whatOf(op).has(Job::RecomputeModule::Moe);
      if (!isWhole && !whatOf(op).has(Job::RecomputeModule::MoeAct))
        continue;
      bool reads = std::ranges::any_of(
          op.operands, [&](ValueId v) { return isOfExperts(v) && remade_[v] != 0; });
      bool isProduct = plan::opInfo(op).work.cost == plan::CostClass::Product;
      bool isActivation = classOf(op) == plan::Recompute::Activation || (reads && !isProduct);
      if (isWhole || isActivation)
        for (ValueId result : op.results)
          remade_[result] = 1;
    }
  }

  /// Module `mla_up_proj`: recomputes heads from the compressed vectors.
  void markUpProjections() {
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      if (regionOfOp(op) < 0 || classOf(op) != plan::Recompute::UpProjection ||
          !whatOf(op).has(Job::RecomputeModule::MlaUpProj))
        continue;
      for (ValueId operand : op.operands)
        markProducers(operand, op.unit);
      for (ValueId result : op.results)
        remade_[result] = 1;
    }
  }

  /// Finds the residual stream: what one unit passes to another, and sums with it. The sum of a
  /// product and its adapter is not in the stream.
  void findStream() {
    for (size_t i = 0; i < forwardOps_; ++i) {
      const Op &op = segment_.ops[i];
      if (isFusedNorm(op))
        isStream_[op.results[0]] = 1;
      else if (classOf(op) == plan::Recompute::Residual)
        isStream_[op.results[0]] = std::ranges::any_of(op.operands, [&](ValueId operand) {
          uint32_t def = segment_.values[operand].def;
          return isStream_[operand] != 0 || def == kNone || segment_.ops[def].unit != op.unit;
        });
    }
  }

  /// Marks what is computed between a norm, or the residual stream, and the value. Ops with several
  /// results are kept, because others read these.
  void markProducers(ValueId value, int32_t unit) {
    uint32_t def = segment_.values[value].def;
    if (def == kNone || def >= forwardOps_ || segment_.ops[def].unit != unit)
      return;
    const Op &op = segment_.ops[def];
    const plan::Recompute is = classOf(op);
    bool isSum = is == plan::Recompute::Residual && isStream_[value] == 0;
    if (is != plan::Recompute::Product && !isSum && is != plan::Recompute::WithLayer)
      return;
    if (op.results.size() > 1)
      return;
    remade_[value] = 1;
    for (ValueId operand : op.operands)
      markProducers(operand, unit);
  }

  /// The value that the backward pass reads in place of a forward value: the same value, or a copy
  /// that is recomputed here.
  ValueId remake(ValueId value) {
    if (value >= remade_.size() || remade_[value] == 0)
      return value;
    const Op &made = segment_.ops[segment_.values[value].def];
    // Otherwise the numbers of a weight would be kept from the recomputed product to the gradient.
    if (copies_[value] != kNone && !plan::isDequantize(made.kind))
      return copies_[value];
    Op op = made;
    if (isFusedNorm(op) && remade_[op.results[0]] == 0) {
      // The sum is kept: only its norm is recomputed.
      op.kind = *plan::opInfo(op).norm;
      op.operands.erase(op.operands.begin());
      op.operands[0] = op.results[0];
      op.results.erase(op.results.begin());
    }
    for (ValueId &operand : op.operands)
      operand = remake(operand);
    for (ValueId &result : op.results) {
      const ValueId last = copies_[result] == kNone ? result : copies_[result];
      ValueId copy = plan::addValue(segment_, "r." + segment_.values[last].name,
                                    segment_.values[result].type, segment_.values[result].purpose);
      segment_.values[copy].counts = segment_.values[result].counts; // counts are always kept
      copies_[result] = copy;
      result = copy;
    }
    op.phase = plan::Phase::Backward;
    op.isRecomputed = true;
    ops_.push_back(op);
    return copies_[value];
  }

  plan::Segment &segment_;
  const Request &request_;
  size_t forwardOps_;
  std::vector<Op> ops_;
  std::vector<ValueId> copies_;
  std::vector<int32_t> regionOf_;
  std::vector<uint8_t> remade_;
  std::vector<uint8_t> isStream_;   ///< by value: whether it is a sum of the residual stream
  std::vector<uint8_t> hasExperts_; ///< by unit: whether it has experts
  std::vector<uint8_t> isOfLoss_;   ///< by value: whether it belongs to a loss
};

bool brings(const plan::Segment &segment) {
  return std::ranges::any_of(segment.ops, [](const Op &op) {
    return (op.kind == plan::OpKind::AllGather || op.kind == plan::OpKind::Shift ||
            plan::isDequantize(op.kind)) &&
           op.phase == plan::Phase::Forward;
  });
}

} // namespace

void runRecompute(plan::Plan &plan, Notes &) {
  Request request = readRequest(plan);
  bool isAsked = std::ranges::any_of(request.region, [](int32_t region) { return region >= 0; });
  for (plan::Role &role : plan.roles)
    for (plan::Segment &segment : role.segments)
      if (segment.body && countForwardOps(segment) < segment.ops.size() &&
          (isAsked || brings(segment)))
        Rewriter(segment, request, countForwardOps(segment),
                 hostLayersOf(plan, segment, /*onlyNamed=*/true))
            .run();
}

} // namespace shardc::passes
