// Follows updates of whole matrices. A rank has each matrix of its shard whole: in the shard, in
// updates that ranks have gathered, or after Newton-Schulz steps that the ranks with parts of the
// matrices have computed together, each by sums over these ranks.
#include <initializer_list>

#include <fmt/format.h>

#include "runtime/verify/spec/Walk.h"

namespace shardc::plan::spec {
namespace {

std::vector<Attr> attrsOf(const Op &op, std::initializer_list<AttrKey> keys) {
  std::vector<Attr> attrs = op.attrs;
  std::erase_if(attrs,
                [&](const Attr &attr) { return std::ranges::find(keys, attr.key) == keys.end(); });
  return attrs;
}

} // namespace

/// The axes along which ranks have parts of the rows or columns of the block's matrices, in the
/// order of the parts. Matrices are the model's: of each parameter, or of each tensor of a stack.
/// Some parameters may be cut along the first of these axes only; if others are cut in another
/// order, an axis occurs twice, so no group has these axes.
std::vector<uint16_t> Walk::axesOfMatrices(int32_t block) const {
  std::vector<uint16_t> axes;
  for (size_t p : paramsOf(block)) {
    const Param &meant = goals_.plan->params[static_cast<size_t>(goalOf_[p])];
    const int64_t stacked = meant.isStacked() ? meant.wholeType().shape[0] : 1;
    std::vector<uint16_t> own;
    const State state = paramState(p, kNoTerm);
    for (const Place *place : cutsOf(state))
      if (place->outer >= stacked)
        own.push_back(place->axis);
    auto rest = std::ranges::mismatch(axes, own);
    if (rest.in1 == axes.end())
      axes.insert(axes.end(), rest.in2, own.end());
    else if (rest.in2 != own.end())
      axes.push_back(axes.front());
  }
  return axes;
}

/// The update of a parameter before it is orthogonalised, as `muon` or `muon_update` computes it
/// from the model's gradient.
TermId Walk::updateOf(const At &at, size_t param) {
  constexpr size_t kMaster = operandIndex<OpKind::Muon>("master"),
                   kMoment = operandIndex<OpKind::Muon>("m");
  return terms_.of({Term::Apply,
                    OpKind::MuonUpdate,
                    0,
                    0,
                    attrsOf(at.op, {AttrKey::momentum, AttrKey::weight_decay, AttrKey::nesterov,
                                    AttrKey::decoupled}),
                    {terms_.bare(operand(at, kMaster).block->params[param].term),
                     operand(at, kMoment).block->params[param].term}});
}

Values Walk::followMuonUpdate(const At &at) {
  if (!takesGradients(at))
    return {};
  BlockState made = *operand(at, operandIndex<OpKind::MuonUpdate>("master")).block;
  for (size_t i = 0; i < made.params.size(); ++i)
    made.params[i].term = updateOf(at, i);
  return {std::move(made)};
}

/// The result of Newton-Schulz step `n` of the op for a matrix, or the sums that the step needs.
TermId Walk::stepOf(const Op &op, OpKind kind, int64_t n, TermId x) {
  std::vector<Attr> attrs = kind == OpKind::MuonStep
                                ? attrsOf(op, {AttrKey::products, AttrKey::ns_coefficients})
                                : attrsOf(op, {AttrKey::products});
  return terms_.of({Term::Apply, kind, 0, n, std::move(attrs), {x}});
}

/// Follows a step of ranks that have parts of matrices, or its sums over these parts.
Values Walk::followMuonStep(const At &at) {
  const Value &x = operand(at, 0), &moment = operand(at, 1);
  auto index = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  if (index < 0 || !x.isBlock() || !moment.isBlock() || !x.block->joined.empty())
    return refuse(at, "does not take updates of its block");
  const std::vector<uint16_t> axes = axesOfMatrices(index);
  bool isStep = at.op.kind == OpKind::MuonStep;
  if (axes.empty() || (!isStep && at.op.getInt(AttrKey::sum_ranks) != mesh_.members(axes)))
    return refuse(at, "adds parts of other ranks than those that have the matrices");
  BlockState made = *x.block, sums = *x.block;
  const int64_t n = at.op.getInt(AttrKey::ns_step);
  for (size_t i = 0; i < made.params.size(); ++i) {
    TermId term = x.block->params[i].term;
    made.params[i].term = stepOf(at.op, OpKind::MuonStep, n, term);
    sums.params[i].term = stepOf(at.op, OpKind::MuonSums, n, term);
    for (uint16_t axis : axes)
      isStep ? sums.params[i].remove(axis) : sums.params[i].put({axis, Place::Part});
  }
  if (!isStep)
    return {std::move(sums)};
  const Value &added = operand(at, operandIndex<OpKind::MuonStep>("sums"));
  if (!added.isBlock() || !(*added.block == sums))
    return refuse(at, "does not take the sums of its step over all parts");
  return {std::move(made)};
}

/// Whether an update by Muon has each matrix of the block whole.
bool Walk::hasWholeMatrices(const At &at) {
  constexpr size_t kUpdates = operandIndex<OpKind::Muon>("u");
  const auto index = static_cast<int32_t>(at.op.getInt(AttrKey::block));
  const bool isDivided = at.op.getBool(AttrKey::divided);
  BlockState own = *operand(at, operandIndex<OpKind::Muon>("master")).block;
  const BlockState *taken = &own;
  if (at.op.operands.size() > kUpdates) {
    const Value &updates = operand(at, kUpdates);
    if (!updates.isBlock() || updates.block->block != index)
      return refuse(at, "does not take updates of its block");
    taken = updates.block.get();
    for (size_t i = 0; i < own.params.size(); ++i) {
      TermId needed = updateOf(at, i);
      for (int64_t n = 0; isDivided && n <= at.op.getInt(AttrKey::ns_steps); ++n)
        needed = stepOf(at.op, OpKind::MuonStep, n, needed);
      if (taken->params[i].term != needed)
        return refuse(at, "takes other updates than those of its own shard");
    }
  }
  std::vector<uint16_t> parts;
  if (goals_.plan->job.optimizer.muonTpMode != Job::MuonTpMode::Blockwise)
    parts = axesOfMatrices(index);
  if (isDivided ? taken == &own || parts.empty() : taken->joined != parts)
    return refuse(at, "lacks parts of matrices that other ranks have");
  if (at.op.getInt(AttrKey::tensor_parts) != mesh_.members(taken->joined))
    return refuse(at, "takes updates of another number of ranks");
  const int64_t part = typeOf(at, at.op.operands[operandIndex<OpKind::Muon>("master")]).numel();
  for (size_t p : paramsOf(index)) {
    const Param &param = plan_.params[p];
    const int64_t numel = param.type.numel() / (param.isStacked() ? param.type.shape[0] : 1);
    for (int64_t begin = param.offset; begin < param.offset + param.type.numel(); begin += numel)
      if (!taken->axes.empty() && begin / part != (begin + numel - 1) / part)
        return refuse(at, "has only a part of a matrix of '{}'", param.name);
  }
  return true;
}

} // namespace shardc::plan::spec
