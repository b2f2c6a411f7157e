// Computes vector clocks from the order of streams and from waits.
#include "compiler/passes/Clocks.h"

namespace shardc::passes {

std::vector<Clock> clocksAtStart(const plan::Segment &segment) {
  std::vector<Clock> start(segment.ops.size(), kClockZero), end(segment.ops.size(), kClockZero);
  std::array<Clock, plan::kStreamsMax> current;
  current.fill(kClockZero);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const plan::Op &op = segment.ops[i];
    size_t stream = op.stream;
    start[i] = current[stream];
    for (uint32_t wait : op.waits)
      join(start[i], end[wait]);
    end[i] = start[i];
    if (isAlias(op))
      continue;
    end[i][stream] = static_cast<int32_t>(i);
    current[stream] = end[i];
  }
  return start;
}

std::vector<Clock> definingOps(const plan::Segment &segment) {
  std::vector<Clock> defs(segment.values.size(), kClockZero);
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    const plan::Op &op = segment.ops[i];
    for (plan::ValueId result : op.results) {
      if (isAlias(op)) {
        for (plan::ValueId operand : op.operands)
          join(defs[result], defs[operand]);
      } else {
        defs[result][op.stream] = static_cast<int32_t>(i);
      }
    }
  }
  return defs;
}

} // namespace shardc::passes
