// Finds the values of a layer by upstream's names of modules, by what computes and reads them.
// clang-format off
//   attn_norm   the layer's input
//   qkv_linear  the input of the first product, unless the backward pass writes the norm again
//   core_attn   what attention reads, and its statistics
//   attn_proj   the result of attention
//   mlp_norm    the sum before the second norm
//   mlp_act     what the activation reads
//   expert_fc1  rows that experts receive; moe_act: what their activation reads
// clang-format on
#include "compiler/passes/HostValues.h"

#include <algorithm>
#include <optional>

#include "compiler/model/LayerList.h"
#include "compiler/passes/Clocks.h"
#include "compiler/passes/PlanNames.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {
namespace {

using model::OffloadModule;

bool isOfBackward(const Op &op) { return op.phase == plan::Phase::Backward; }

/// The row of the op, or of the op whose result it quantises.
const plan::OpInfo &producerInfo(const Op &op) {
  const plan::OpInfo &info = plan::opInfo(op);
  return info.form ? plan::opInfo(info.form->producer) : info;
}

class HostValues {
public:
  HostValues(const plan::Plan &plan, const plan::Segment &segment)
      : plan_(plan), segment_(segment), facts_(segment.values.size()) {
    readLayers();
    for (const Op &op : segment.ops) {
      if (isOfBackward(op))
        noteReads(op);
      else
        noteForward(op);
      noteWrites(op);
    }
    for (const plan::Segment::Boundary &out : segment.outs)
      facts_[out.value].isHeld = true;
  }

  std::vector<int32_t> layers(bool onlyNamed) const {
    std::vector<int32_t> layers(segment_.values.size(), -1);
    for (ValueId value = 0; value < layers.size(); ++value)
      if (const Facts &facts = facts_[value]; mayMove(value, facts) && isNamed(value, onlyNamed))
        layers[value] = facts.reader;
    return layers;
  }

private:
  struct Facts {
    int32_t reader = -1;     ///< unit of the first op of the backward pass that reads it
    bool isHeld = false;     ///< overwritten, a part of a pack, or left in a cell
    bool isAttended = false; ///< attention reads it
    bool isActivated = false;
    bool isMultiplied = false;
    bool isNormed = false;
    bool isBeforeAttention = false; ///< computed before the layer's attention
  };

  void readLayers() {
    std::vector<size_t> units;
    for (size_t unit = 0; unit < plan_.units.size(); ++unit)
      if (plan::isLayer(plan_, static_cast<int32_t>(unit)))
        units.push_back(unit);
    model::LayerList read = model::readLayerList(
        plan_.job.model.offloadLayers, static_cast<int64_t>(units.size()), model::kOffloadWords);
    SHARDC_CHECK(read.isValid(), "'model.offload_layers': {}", read.problem);
    parts_.resize(plan_.units.size());
    for (size_t layer = 0; layer < units.size(); ++layer)
      if (layerAfter(plan_, static_cast<int32_t>(units[layer])) >= 0)
        parts_[units[layer]] = read.layers[layer];
    attention_.resize(plan_.units.size());
  }

  void noteReads(const Op &op) {
    if (isAlias(op))
      return;
    for (ValueId operand : op.operands)
      if (Facts &facts = facts_[rootOf(segment_, operand)]; facts.reader < 0)
        facts.reader = op.unit;
  }

  void noteForward(const Op &op) {
    const plan::OpInfo &info = producerInfo(op);
    const bool isAttention = info.work.cost == plan::CostClass::Attention;
    if (op.unit >= 0 && isAttention)
      attention_[static_cast<size_t>(op.unit)] = 1;
    for (ValueId operand : op.operands) {
      Facts &facts = facts_[rootOf(segment_, operand)];
      facts.isAttended |= isAttention;
      facts.isActivated |= info.recompute == plan::Recompute::Activation;
      facts.isMultiplied |= info.work.cost == plan::CostClass::Product;
      facts.isNormed |= info.recompute == plan::Recompute::Norm;
    }
    for (ValueId result : op.results)
      facts_[result].isBeforeAttention =
          op.unit >= 0 && attention_[static_cast<size_t>(op.unit)] == 0;
  }

  /// Values whose bytes are another value's too stay: a copy would free nothing, or come too late.
  void noteWrites(const Op &op) {
    for (const plan::Tie &tie : op.ties)
      facts_[rootOf(segment_, tie.value)].isHeld = facts_[op.results[tie.result]].isHeld = true;
    for (size_t r = 0; r < op.results.size(); ++r)
      if (int operand = plan::inPlaceOperand(op, r); operand >= 0)
        facts_[rootOf(segment_, op.operands[static_cast<size_t>(operand)])].isHeld =
            facts_[op.results[r]].isHeld = true;
    if (op.kind == OpKind::Pack)
      for (ValueId part : op.operands)
        facts_[rootOf(segment_, part)].isHeld = true;
  }

  bool mayMove(ValueId id, const Facts &facts) const {
    const plan::Value &value = segment_.values[id];
    if (value.def == plan::kNone || facts.isHeld || facts.reader < 0 ||
        value.purpose != plan::Purpose::Activations)
      return false;
    const Op &op = segment_.ops[value.def];
    return !isOfBackward(op) && op.kind != OpKind::View && op.kind != OpKind::ToHost &&
           op.pred == plan::Pred::Always &&
           value.type.numel() >= plan_.job.derived.offloadMinElements;
  }

  bool isNamed(ValueId value, bool onlyNamed) const {
    const model::LayerParts &parts = parts_[static_cast<size_t>(facts_[value].reader)];
    if (parts.isFull)
      return !onlyNamed;
    std::optional<OffloadModule> module = parts.isNothing() ? std::nullopt : moduleOf(value);
    bool isOfExperts = module == OffloadModule::ExpertFc1 || module == OffloadModule::MoeAct;
    return module &&
           (parts.has(*module) || (isOfExperts && parts.has(OffloadModule::FusedGroupMlp)));
  }

  std::optional<OffloadModule> moduleOf(ValueId id) const {
    using enum OffloadModule;
    const Facts &facts = facts_[id];
    const plan::Value &value = segment_.values[id];
    if (value.counts != plan::kNone)
      return facts.isActivated ? MoeAct : ExpertFc1;
    if (facts.isAttended)
      return CoreAttn;
    const auto [op, result] = madeBy(id);
    const plan::Recompute is = producerInfo(*op).recompute;
    if (is == plan::Recompute::Attention)
      return result == 0 ? AttnProj : CoreAttn;
    if (facts.isActivated)
      return MlpAct;
    const bool isNorm = is == plan::Recompute::Norm || is == plan::Recompute::FusedNorm;
    if (isNorm && (is == plan::Recompute::Norm || result != sumAt(*op)))
      return facts.isMultiplied && facts.isBeforeAttention ? std::optional(QkvLinear)
                                                           : std::nullopt;
    if (op->unit != facts.reader || (isNorm && isFromOutside(*op)))
      return AttnNorm;
    if (isNorm || (is == plan::Recompute::Residual && facts.isNormed))
      return MlpNorm;
    return std::nullopt;
  }

  /// The op that computes the value, or the first part of it, and the number of the result.
  std::pair<const Op *, size_t> madeBy(ValueId id) const {
    const plan::Value &value = segment_.values[id];
    const Op &op = segment_.ops[value.def];
    if (op.kind == OpKind::Pack && !op.operands.empty() &&
        segment_.values[op.operands[0]].def != plan::kNone)
      return madeBy(op.operands[0]);
    return {&op, value.defResult};
  }

  /// The result of a fused sum and norm that is the sum. Forms have results in another order.
  static size_t sumAt(const Op &norm) {
    std::string_view names = producerInfo(norm).results;
    int at = plan::positionOf(plan::opInfo(norm).results, names.substr(0, names.find(' ')));
    return static_cast<size_t>(at);
  }

  /// Whether a fused sum and norm adds what other units computed, so that the sum is the input of
  /// its layer.
  bool isFromOutside(const Op &norm) const {
    return std::all_of(norm.operands.begin(), norm.operands.begin() + 2, [&](ValueId term) {
      uint32_t def = segment_.values[rootOf(segment_, term)].def;
      return def == plan::kNone || segment_.ops[def].unit != norm.unit;
    });
  }

  const plan::Plan &plan_;
  const plan::Segment &segment_;
  std::vector<Facts> facts_;             ///< by value
  std::vector<model::LayerParts> parts_; ///< by unit
  std::vector<uint8_t> attention_;       ///< by unit: whether attention was seen
};

} // namespace

ValueId rootOf(const plan::Segment &segment, ValueId value) {
  for (;;) {
    uint32_t def = segment.values[value].def;
    if (def == plan::kNone || segment.ops[def].kind != OpKind::View)
      return value;
    value = segment.ops[def].operands[0];
  }
}

std::vector<int32_t> hostLayersOf(const plan::Plan &plan, const plan::Segment &segment,
                                  bool onlyNamed) {
  if (!segment.body || plan.job.model.offloadLayers.empty())
    return std::vector<int32_t>(segment.values.size(), -1);
  return HostValues(plan, segment).layers(onlyNamed);
}

int32_t layerAfter(const plan::Plan &plan, int32_t unit) {
  for (auto next = static_cast<size_t>(unit + 1); next < plan.units.size(); ++next)
    if (plan::isLayer(plan, static_cast<int32_t>(next)))
      return static_cast<int32_t>(next);
  return -1;
}

} // namespace shardc::passes
