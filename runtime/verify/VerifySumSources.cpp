// Traces a sum back, through ties and ops that hand contributions on, to the ops that have made
// them.
#include "runtime/verify/VerifySums.h"

namespace shardc::plan::verifier {
namespace {

/// What it takes to follow a sum to what it is made of, for each value, in the visits that are
/// counted.
constexpr uint64_t kVisitsOfSource = 64;

/// Whether the op's results consist of contributions that its operands have.
bool handsOn(SumRole role) {
  return role == SumRole::Passes || role == SumRole::Cuts || role == SumRole::Joins ||
         role == SumRole::Combines;
}

} // namespace

std::set<uint32_t> contributorsOf(Inspection &inspection, const Segment &segment, Variant variant,
                                  ValueId value) {
  std::set<uint32_t> ops;
  std::set<ValueId> seen = {value};
  for (std::vector<ValueId> left = {value}; !left.empty() && inspection.spend(kVisitsOfSource);) {
    const Value &next = segment.values[left.back()];
    left.pop_back();
    if (next.def == kNone)
      continue;
    const Op &op = segment.ops[next.def];
    OpTraits traits = opInfo(op).traits;
    bool isExecuted = traits == OpTraits::Alias || holds(op.pred, variant);
    bool isPassed = handsOn(opInfo(op).sum);
    if (isExecuted && !isPassed)
      ops.insert(next.def);
    auto follow = [&](ValueId from) {
      if (seen.insert(from).second)
        left.push_back(from);
    };
    for (const Tie &tie : op.ties)
      if (tie.result == next.defResult &&
          (tie.kind == Tie::Else ? !isExecuted : isExecuted && holds(tie.pred, variant)))
        follow(tie.value);
    for (ValueId operand : op.operands)
      if (isExecuted && isPassed)
        follow(operand);
  }
  return ops;
}

} // namespace shardc::plan::verifier
