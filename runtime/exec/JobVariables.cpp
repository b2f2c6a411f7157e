#include "runtime/exec/JobVariables.h"

#include <string_view>

#include <fmt/format.h>

namespace shardc::exec {
namespace {

constexpr std::string_view kSection = "env.";
constexpr const char *kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";

} // namespace

JobVariables jobVariables(const plan::Plan &plan, const GetVariable &get) {
  JobVariables variables;
  for (const auto &[path, value] : plan.job) {
    const auto *text = std::get_if<std::string>(&value);
    if (!text || !path.starts_with(kSection))
      continue;
    std::string name = path.substr(kSection.size());
    const char *present = get(name.c_str());
    if (!present)
      variables.toSet.emplace_back(std::move(name), *text);
    else if (*text != present)
      variables.kept.push_back(std::move(name));
  }
  return variables;
}

/// The texts are those of the rules fsdp-max-connections and torch-fsdp2-max-connections, which
/// judge recipes.
std::string checkConnections(const plan::Plan &plan, const GetVariable &get) {
  const char *value = get(kConnections);
  if (!value || std::string_view(value) != "1")
    return "";
  if (plan.jobBool("dist.use_megatron_fsdp", false) || plan.jobBool("ddp.use_megatron_fsdp", false))
    return fmt::format("FSDP requires {0} > 1 or unset; the environment has {0} = 1 "
                       "[fsdp-max-connections]",
                       kConnections);
  if (plan.jobBool("dist.use_torch_fsdp2", false))
    return fmt::format("FSDP always requires {0} value large than one; the environment has {0} = 1 "
                       "[torch-fsdp2-max-connections]",
                       kConnections);
  return "";
}

} // namespace shardc::exec
