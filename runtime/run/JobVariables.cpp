// A variable that the environment already has keeps its value, even if the recipe sets another one;
// the run reports that.
#include "runtime/run/JobVariables.h"

#include <string_view>

#include <fmt/format.h>

#include "runtime/base/Reports.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
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

/// The messages are those of the rules fsdp-max-connections and torch-fsdp2-max-connections for
/// recipes.
Status checkConnections(const plan::Plan &plan, const GetVariable &get) {
  const char *value = get(kConnections);
  if (!value || std::string_view(value) != "1")
    return Status::ok();
  if (plan.job.dist.useMegatronFsdp || plan.job.ddp.useMegatronFsdp)
    return makeStatus(report::MaxConnections, kConnections);
  if (plan.job.dist.useTorchFsdp2)
    return makeStatus(report::TorchMaxConnections, kConnections);
  return Status::ok();
}

Status checkRegistration(const plan::Plan &plan, const GetVariable &get) {
  const char *value = get(kGraphRegister);
  if (!value || std::string_view(value) == "0" || !hasExchange(plan))
    return Status::ok();
  return makeStatus(report::GraphRegister, kGraphRegister, plan::printable(value));
}

} // namespace shardc::run
