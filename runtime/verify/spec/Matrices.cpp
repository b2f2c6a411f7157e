// Follows updates of whole matrices. A rank has each matrix of its shard whole: in the shard, in
// updates that ranks have gathered, or after Newton-Schulz steps that the ranks with parts of the
// matrices have computed together, each by sums over these ranks.
#include "runtime/plan/Matrices.h"

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

/// The axes of the ranks that have parts of the block's matrices.
std::vector<uint16_t> Walk::axesOfMatrices(int32_t block) const {
  return mesh_.axesOf(groupOfMatrixParts(plan_, block));
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
  const bool isJoined = joinsMatrixParts(plan_, index), isDivided = at.op.getBool(AttrKey::divided);
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
  if (isJoined)
    parts = axesOfMatrices(index);
  if (isDivided ? taken == &own || parts.empty() : taken->joined != parts)
    return refuse(at, "lacks parts of matrices that other ranks have");
  if (at.op.getInt(AttrKey::tensor_parts) != mesh_.members(taken->joined))
    return refuse(at, "takes updates of another number of ranks");
  const Block &block = plan_.blocks[static_cast<size_t>(index)];
  for (const BlockMatrix &matrix : matricesOf(plan_, index, isJoined))
    if (!taken->axes.empty() && matrix.isCutBy(block.stateShard))
      return refuse(at, "has only a part of a matrix of '{}'", matrix.param->name);
  return true;
}

} // namespace shardc::plan::spec
