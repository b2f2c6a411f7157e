// Formats the text of `--explain`. It only asks the backend which kernel it has for an op; nothing
// is allocated or bound.
#include "runtime/exec/Explain.h"

#include "runtime/plan/Execution.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::exec {
namespace {

int64_t bytesOf(const plan::Segment &segment, const std::vector<plan::ValueId> &values) {
  int64_t bytes = 0;
  for (plan::ValueId value : values)
    bytes += segment.values[value].type.bytes();
  return bytes;
}

/// What executes the op: a kernel's name, the transport of a collective, or a copy.
std::string server(const plan::Plan &plan, const plan::Op &op, FindKernel findKernel) {
  const plan::OpInfo &info = plan::opInfo(op);
  if (info.traits == plan::OpTraits::Alias)
    return "nothing: names bytes";
  if (info.traits == plan::OpTraits::Collective)
    return fmt::format("collective over {} by {} on {}",
                       op.group >= 0 ? plan.groups[op.group].name : "no group",
                       plan::toString(plan.transportOf(op)),
                       op.channel >= 0 ? plan.channels[op.channel].name : "no channel");
  if (info.traits == plan::OpTraits::Copy)
    return "a copy";
  const kernels::Kernel *kernel = findKernel(info.name);
  return kernel ? kernel->name : "NO KERNEL";
}

} // namespace

/// One line per op, in the order of the plan, below its segment and role. The bytes are the sizes
/// of all operands and results, not measured traffic.
std::string explain(const plan::Plan &plan, FindKernel findKernel) {
  std::string out = fmt::format("plan '{}': {} ranks, backend {}\n", plan.name, plan.worldSize(),
                                plan.needsBackend);
  for (const plan::Role &role : plan.roles) {
    out += fmt::format("role {}:", plan::printable(role.name));
    for (int a = 0; a < plan::kArenaCount; ++a)
      out += fmt::format("  {} {}", plan::toString(static_cast<plan::Arena>(a)),
                         plan::formatBytes(role.arenaBytes[a]));
    out += fmt::format("\ngraphs: {}\n", plan::toString(plan::graphsOf(plan, role)));
    for (const plan::Segment &segment : role.segments) {
      out += fmt::format("segment {}\n", plan::printable(segment.name));
      for (const plan::Op &op : segment.ops)
        out += fmt::format(
            "  {:<8} {}{} -> {}, reads {}, writes {}\n", plan.streams[op.stream].name,
            plan::opLabel(plan, segment, op),
            op.pred == plan::Pred::Always ? "" : fmt::format(" if {}", plan::toString(op.pred)),
            server(plan, op, findKernel), plan::formatBytes(bytesOf(segment, op.operands)),
            plan::formatBytes(bytesOf(segment, op.results)));
    }
  }
  return out;
}

} // namespace shardc::exec
