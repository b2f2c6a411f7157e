// Mixes numbers of values from ops, attributes and operands; what members make together is
// numbered by how often they have met.
#include "runtime/verify/VerifySumNumbers.h"

#include <algorithm>

namespace shardc::plan::verifier {

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
  return x ^ (x >> 32);
}

uint64_t ValueNumbers::ofOp(const Op &op) const {
  if (!isOn_)
    return 0;
  // Sums of losses in a step state are each rank's own until the step ends, and no part of it.
  if (op.kind == OpKind::LossAdd || op.kind == OpKind::EvalAdd)
    return numbers_[op.operands[0]];
  uint64_t number = mixed(opInfo(op).index, op.operands.size());
  if (opInfo(op).takesIndex())
    number = mixed(number, static_cast<uint64_t>(op.group));
  for (const Attr &attr : op.attrs)
    number = mixed(mixed(number, static_cast<uint64_t>(attr.key)), static_cast<uint64_t>(attr.i));
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (op.kind != OpKind::StepFinish || i < 2 || op.getBool(AttrKey::norm_replicated))
      number = mixed(number, numbers_[op.operands[i]]);
  return number;
}

uint64_t ValueNumbers::ofMeeting(const Op &op) {
  if (!isOn_)
    return 0;
  uint64_t number = mixed(static_cast<uint64_t>(op.group), static_cast<uint64_t>(op.channel));
  number = mixed(number, ++meetings_[{op.group, op.channel}]);
  const std::vector<uint16_t> &axes = plan_.groups[static_cast<size_t>(op.group)].axes;
  for (const AxisRange &range : part_.where)
    if (std::ranges::find(axes, range.axis) == axes.end())
      number = mixed(mixed(number, range.axis), static_cast<uint64_t>(range.begin));
  return number;
}

void ValueNumbers::addMeetings(const Meetings &more, uint64_t times) {
  for (const auto &[queue, count] : more)
    meetings_[queue] += times * count;
}

uint64_t ValueNumbers::ofMeetings(const Meetings &again) const {
  uint64_t number = 0;
  for (const auto &[queue, count] : again) {
    auto at = meetings_.find(queue);
    number = mixed(mixed(number, static_cast<uint64_t>(queue.first)),
                   static_cast<uint64_t>(queue.second));
    number = mixed(number, at == meetings_.end() ? 0 : at->second);
  }
  return number;
}

} // namespace shardc::plan::verifier
