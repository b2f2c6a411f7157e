#include "runtime/exec/JobVariables.h"

#include <string_view>

#include <fmt/format.h>

#include "runtime/plan/Landing.h"
#include "runtime/plan/Syntax.h"

namespace shardc::exec {
namespace {

constexpr const char *kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr const char *kGraphRegister = "NCCL_GRAPH_REGISTER";

bool hasExchange(const plan::Plan &plan) {
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops)
        if (plan::isExchanged(plan, segment, op))
          return true;
  return false;
}

} // namespace

JobVariables jobVariables(const plan::Plan &plan, const GetVariable &get) {
  JobVariables variables;
  for (const auto &[name, text] : plan.job.environment) {
    const char *present = get(name.c_str());
    if (!present)
      variables.toSet.emplace_back(name, text);
    else if (text != present)
      variables.kept.push_back(name);
  }
  return variables;
}

/// The texts are those of the rules fsdp-max-connections and torch-fsdp2-max-connections, which
/// judge recipes.
std::string checkConnections(const plan::Plan &plan, const GetVariable &get) {
  const char *value = get(kConnections);
  if (!value || std::string_view(value) != "1")
    return "";
  if (plan.job.dist.useMegatronFsdp || plan.job.ddp.useMegatronFsdp)
    return fmt::format("FSDP requires {0} > 1 or unset; the environment has {0} = 1 "
                       "[fsdp-max-connections]",
                       kConnections);
  if (plan.job.dist.useTorchFsdp2)
    return fmt::format("FSDP always requires {0} value large than one; the environment has {0} = 1 "
                       "[torch-fsdp2-max-connections]",
                       kConnections);
  return "";
}

std::string checkRegistration(const plan::Plan &plan, const GetVariable &get) {
  const char *value = get(kGraphRegister);
  if (!value || std::string_view(value) == "0" || !hasExchange(plan))
    return "";
  return fmt::format("{0} is {1} and must be 0 or unset: the plan sends and receives its sums over "
                     "ranks in graphs, and sends do not complete if NCCL registers their buffers "
                     "by itself; use --no-graph to run without graphs",
                     kGraphRegister, plan::printable(value));
}

} // namespace shardc::exec
