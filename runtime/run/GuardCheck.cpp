// Stops at the first op after which a guard zone has changed.
#include "runtime/run/GuardCheck.h"

namespace shardc::run {

Status GuardCheck::afterOp(const Position &position) {
  const exec::BoundSegment *bound = executable_.bound(position.segment, position.instance);
  const exec::BoundOp &op = bound->ops[position.op];
  if (op.kind == exec::BoundOp::Nothing)
    return Status::ok();
  bool isBody = executable_.segment(position.segment).body;
  std::string microbatch =
      isBody ? fmt::format(", microbatch {}", position.params.microbatch) : std::string();
  return executable_.backend().checkGuards().withContext(
      fmt::format("step {}{}, after '{}'", step_, microbatch, op.label));
}

} // namespace shardc::run
