#include "runtime/exec/Preflight.h"

#include <algorithm>
#include <limits>

#include "runtime/plan/Landing.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Syntax.h"

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
        bool isKernel = info.traits == plan::OpTraits::None || info.traits == plan::OpTraits::Pure;
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
    for (size_t arena = 0; arena < role.arenaBytes.size(); ++arena)
      if (backend.devicesShareMemory() || static_cast<plan::Arena>(arena) != plan::Arena::Host)
        each += role.arenaBytes[arena];
  int64_t landings = 0;
  if (backend.hasLandingBuffers())
    for (const plan::Role &role : plan.roles)
      landings += plan::landingBytes(plan, role);
  each += landings;
  auto here = static_cast<int64_t>(backend.devices().size()) * processes;
  int64_t ranks = backend.devicesShareMemory() ? here : 1;
  int64_t needed = 0;
  if (__builtin_mul_overflow(each, ranks, &needed))
    needed = std::numeric_limits<int64_t>::max();
  int64_t free = backend.devices().front()->bytesFree(hal::MemoryKind::Work);
  if (needed <= free)
    return "";
  return fmt::format("the arenas{} of {} ranks, {} each, take {}; {} are free",
                     landings > 0 ? " and landing buffers" : "", ranks, plan::formatBytes(each),
                     plan::formatBytes(needed), plan::formatBytes(free));
}

namespace {

/// The words of a driver's name for a device, in lower case: "NVIDIA H100 80GB HBM3" is nvidia,
/// h100, 80gb and hbm3.
std::vector<std::string> wordsOf(std::string_view name) {
  std::vector<std::string> words(1);
  for (char c : name)
    if (c == ' ' || c == '-' || c == '_')
      words.emplace_back();
    else
      words.back() += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  std::erase(words, "");
  return words;
}

/// The device table's kind has the driver's words between underscores: a100_40gb.
bool isKind(const std::string &kind, std::string_view name) {
  std::vector<std::string> words = wordsOf(name);
  return std::ranges::all_of(wordsOf(kind), [&](const std::string &word) {
    return std::ranges::find(words, word) != words.end();
  });
}

/// How the device table calls a GPU that it has; empty if the name says nothing.
std::string kindOf(std::string_view name) {
  for (const std::string &word : wordsOf(name))
    if (word.find_first_of("0123456789") != std::string::npos)
      return word;
  return "";
}

} // namespace

std::string checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs,
                       bool opByOp) {
  if (backendName != "cuda" || !isTraced || !(withoutGraphs || opByOp))
    return "";
  return fmt::format(
      "--trace tells ops on GPUs by captured graphs, and {} runs without them; leave "
      "one of the two",
      withoutGraphs ? "--no-graph" : "--check");
}

std::string checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere) {
  if (gpus.count >= ranksHere)
    return "";
  std::string kind = isKind(plan.needsGpu, gpus.name) ? "" : kindOf(gpus.name);
  return fmt::format("the plan has {} ranks on this machine and {} {} visible; '--set "
                     "cluster.gpus_per_node={}{}' compiles the recipe for {}",
                     ranksHere, gpus.count, gpus.count == 1 ? "GPU is" : "GPUs are", gpus.count,
                     kind.empty() ? "" : " --set cluster.gpu=" + kind,
                     gpus.count == 1 ? "it" : "them");
}

std::string gpuKindWarning(const plan::Plan &plan, const VisibleGpus &gpus) {
  std::string kind = kindOf(gpus.name);
  if (plan.needsGpu.empty() || kind.empty() || isKind(plan.needsGpu, gpus.name))
    return "";
  return fmt::format("the plan was made for {}, and this GPU is {}: what is predicted of memory "
                     "and time is not for it; '--set cluster.gpu={}' compiles the recipe for it",
                     plan.needsGpu, plan::printable(gpus.name), kind);
}

} // namespace shardc::exec
