#include "runtime/exec/Preflight.h"

#include <algorithm>
#include <limits>

#include "runtime/plan/Summary.h"

namespace shardc::exec {

std::vector<std::string> preflight(const plan::Plan &plan, std::string_view backendName,
                                   FindKernel findKernel, const PreflightOptions &options) {
  std::vector<std::string> findings;
  if (plan.level != plan::Level::Placed)
    findings.push_back(
        fmt::format("the plan is {}; only a placed plan can run", plan::toString(plan.level)));
  if (plan.needsBackend != backendName && !options.isSimulation)
    findings.push_back(
        fmt::format("the plan needs backend {}, not {}", plan.needsBackend, backendName));
  if (plan.roles.size() != 1)
    findings.push_back(fmt::format("the plan has {} roles; this runtime executes plans of one",
                                   plan.roles.size()));
  std::vector<std::string_view> missing;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops) {
        const plan::OpInfo &info = plan::opInfo(op.kind);
        bool isKernel =
            info.traits == plan::OpTraits::None || info.traits == plan::OpTraits::Pure;
        if (isKernel && !findKernel(info.name) &&
            std::find(missing.begin(), missing.end(), info.name) == missing.end())
          missing.push_back(info.name);
      }
  for (std::string_view name : missing)
    findings.push_back(fmt::format("backend {} has no kernel for '{}'", backendName, name));
  return findings;
}

std::string checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes) {
  int64_t each = 0;
  for (const plan::Role &role : plan.roles)
    for (int64_t bytes : role.arenaBytes)
      each += bytes;
  auto here = static_cast<int64_t>(backend.devices().size()) * processes;
  int64_t ranks = backend.devicesShareMemory() ? here : 1;
  int64_t needed = 0;
  if (__builtin_mul_overflow(each, ranks, &needed))
    needed = std::numeric_limits<int64_t>::max();
  int64_t free = backend.devices().front()->bytesFree(hal::MemoryKind::Work);
  if (needed <= free)
    return "";
  return fmt::format("the arenas of {} ranks, {} each, take {}; {} are free", ranks,
                     plan::formatBytes(each), plan::formatBytes(needed), plan::formatBytes(free));
}

} // namespace shardc::exec
