// Divides the iterations of a loop into groups that execute the same variants.
#include "runtime/verify/VerifyWalk.h"

namespace shardc::plan::verifier {

LoopIterations::LoopIterations(Inspection &inspection, uint32_t role, const ProgramNode &loop,
                               const std::vector<int64_t> &counts, bool isPlain)
    : rings_(inspection.ringsOf(role)), count_(loop.count),
      step_(inspection.followsAllIterations() && !isPlain
                ? 0
                : stepOf(inspection.plan().roles[role], loop)) {
  if (!isRegular())
    return;
  const Role &of = inspection.plan().roles[role];
  isTouched_.resize(of.cells.size());
  cuts_ = {0, count_};
  for (const ProgramNode &run : loop.children) {
    const Segment &segment = of.segments[run.segment];
    cut(run, inspection.variantTablesOf(role)[run.segment], counts[run.segment]);
    for (const auto *boundaries : {&segment.ins, &segment.outs})
      touch(*boundaries);
  }
  std::ranges::sort(cuts_);
}

/// The number of microbatches from one iteration to the next; 0 if iterations do not execute the
/// same ops for later microbatches.
int64_t LoopIterations::stepOf(const Role &role, const ProgramNode &loop) {
  bool isRegular = std::ranges::all_of(loop.children, [&](const ProgramNode &node) {
    return node.kind == ProgramNode::Run && node.microbatch && role.segments[node.segment].body &&
           node.microbatch->coef == loop.children.front().microbatch->coef;
  });
  return isRegular && !loop.children.empty() ? loop.children.front().microbatch->coef : 0;
}

/// Cuts the iterations at the table's numbers: microbatches between two of them execute the same
/// ops.
void LoopIterations::cut(const ProgramNode &run, const VariantTable &table, int64_t microbatches) {
  for (int64_t number : table.numbersFor(microbatches)) {
    int64_t beyond = number - run.microbatch->base;
    if (beyond > 0 && beyond <= step_ * (count_ - 1))
      cuts_.push_back((beyond + step_ - 1) / step_);
  }
}

int64_t LoopIterations::alikeAfter(int64_t iteration) const {
  return isRegular() ? *std::ranges::upper_bound(cuts_, iteration) - 1 - iteration : 0;
}

/// Marks the cells that a boundary reaches: over all iterations, each slot of its ring.
void LoopIterations::touch(const std::vector<Segment::Boundary> &boundaries) {
  for (const Segment::Boundary &boundary : boundaries)
    if (!isTouched_[boundary.cell])
      for (uint32_t cell : rings_.slotsOf(boundary.cell))
        isTouched_[cell] = true;
}

} // namespace shardc::plan::verifier
