// Maps labels of spans to ops of the plan. Profilers report only labels, so this is how a trace
// finds an op's kind.
#include "runtime/trace/TracedOps.h"

#include <fmt/format.h>

#include "runtime/plan/Text.h"

namespace shardc::trace {
namespace {

/// Returns a text that is equal for ops of a segment that do the same: the kind, the attributes
/// except the block that they work on and their place in the model, and the types of their operands
/// and results.
std::string likenessOf(const plan::Segment &segment, const plan::Op &op) {
  std::string text = fmt::format("{} {}", plan::opInfo(op).name, op.isRecomputed);
  for (const plan::Attr &attr : op.attrs)
    if (attr.key != plan::AttrKey::block && attr.key != plan::AttrKey::salt)
      text += fmt::format(" {}={}", static_cast<int>(attr.key), attr.i);
  for (const std::vector<plan::ValueId> *values : {&op.operands, &op.results})
    for (plan::ValueId value : *values)
      text += fmt::format(" {}", plan::printType(segment.values[value].type));
  return text + fmt::format(" {}", op.ties.size());
}

} // namespace

/// Numbers the kinds of alike ops of a segment consecutively, from the number of ops before it.
/// Numbers of different segments therefore differ.
TracedOps tracedOps(const plan::Plan &plan) {
  TracedOps ops;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments) {
      std::unordered_map<std::string, uint32_t> numbers;
      auto first = static_cast<uint32_t>(ops.size());
      std::vector<std::string> labels = plan::opLabels(plan, segment);
      for (size_t i = 0; i < segment.ops.size(); ++i) {
        const plan::Op &op = segment.ops[i];
        uint32_t likes =
            numbers
                .try_emplace(likenessOf(segment, op), first + static_cast<uint32_t>(numbers.size()))
                .first->second;
        const plan::OpInfo &info = plan::opInfo(op);
        ops.try_emplace(labels[i],
                        TracedOp{info.name, info.traits == plan::OpTraits::Collective, likes});
      }
    }
  return ops;
}

} // namespace shardc::trace
