// Each check returns its own findings, so that one start shows all of them.
#include "runtime/run/Preflight.h"

#include <algorithm>
#include <limits>

#include "runtime/base/Rates.h"
#include "runtime/base/Reports.h"
#include "runtime/exec/CallShape.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Summary.h"
#include "runtime/plan/Text.h"

namespace shardc::run {
namespace {

bool isKernel(const plan::Op &op) {
  plan::OpTraits traits = plan::opInfo(op).traits;
  return traits == plan::OpTraits::None || traits == plan::OpTraits::Pure;
}

/// Why the kernel does not support the op, as far as types, shapes and attributes determine that;
/// null if it does. Ops with a list of operands are only checked when they are bound.
const char *refusalOf(const kernels::Kernel &kernel, const plan::Plan &plan,
                      const plan::Segment &segment, const plan::Op &op) {
  constexpr int kList = 255;
  if (!kernel.accepts || plan::opInfo(op).operandsMax == kList)
    return nullptr;
  kernels::Call call = exec::shapeOf(plan, segment, op);
  for (const plan::Tie &tie : op.ties)
    if (tie.kind == plan::Tie::Acc && tie.result < call.outCount)
      call.out[tie.result].accumulate = true;
  return kernel.accepts(call);
}

/// Each distinct reason of a kernel, with the first op to which it applies.
std::vector<Report> refusals(const plan::Plan &plan, exec::FindKernel findKernel) {
  // A reason, with one op that it concerns and the number of others.
  struct Refusal {
    const kernels::Kernel *kernel;
    std::string_view why;
    std::string label;
    int others = 0;
  };
  std::vector<Refusal> found;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops) {
        const kernels::Kernel *kernel = isKernel(op) ? findKernel(plan::opInfo(op).name) : nullptr;
        const char *why = kernel ? refusalOf(*kernel, plan, segment, op) : nullptr;
        if (!why)
          continue;
        auto same = std::ranges::find_if(found, [&](const Refusal &known) {
          return known.kernel == kernel && known.why == why;
        });
        if (same == found.end())
          found.push_back(
              {kernel, why, fmt::format("{}: {}", segment.name, plan::opLabel(plan, segment, op))});
        else
          ++same->others;
      }
  std::vector<Report> reports;
  for (const Refusal &refusal : found)
    reports.push_back(
        makeReport(report::KernelRefuses, refusal.label, refusal.kernel->name, refusal.why,
                   refusal.others > 0 ? fmt::format(" (and {} more ops)", refusal.others) : ""));
  return reports;
}

} // namespace

std::vector<Report> preflight(const plan::Plan &plan, std::string_view backendName,
                              exec::FindKernel findKernel, const PreflightOptions &options) {
  std::vector<Report> findings;
  if (plan.level != plan::Level::Placed)
    findings.push_back(makeReport(report::PlanNotPlaced, plan::toString(plan.level)));
  if (plan.needsBackend != backendName && !options.isSimulation)
    findings.push_back(makeReport(report::PlanForAnotherBackend, plan.needsBackend, backendName));
  std::vector<std::string_view> missing;
  for (const plan::Role &role : plan.roles)
    for (const plan::Segment &segment : role.segments)
      for (const plan::Op &op : segment.ops) {
        std::string_view name = plan::opInfo(op).name;
        if (isKernel(op) && !findKernel(name) &&
            std::find(missing.begin(), missing.end(), name) == missing.end())
          missing.push_back(name);
      }
  for (std::string_view name : missing)
    findings.push_back(makeReport(report::NoKernel, backendName, name));
  std::vector<Report> refused = refusals(plan, findKernel);
  findings.insert(findings.end(), refused.begin(), refused.end());
  return findings;
}

namespace {

/// Bytes that a rank of a role is about to allocate.
struct RankNeed {
  int64_t arenas = 0, receiveBuffers = 0, communicators = 0, workspaces = 0;
  double sum() const { // saturates, since sizes in a plan's text may be arbitrarily large
    return static_cast<double>(arenas) + static_cast<double>(receiveBuffers) +
           static_cast<double>(communicators) + static_cast<double>(workspaces);
  }
};

/// On the host, devices are the machine's own memory: host arenas count too, and there are no
/// communicators.
RankNeed needOf(const plan::Plan &plan, const plan::Role &role, const hal::Backend &backend) {
  RankNeed need;
  bool sharesMemory = backend.devicesShareMemory();
  for (size_t arena = 0; arena < role.arenaBytes.size(); ++arena)
    if (sharesMemory || static_cast<plan::Arena>(arena) != plan::Arena::Host)
      need.arenas += role.arenaBytes[arena];
  need.receiveBuffers = backend.hasReceiveBuffers() ? plan::receiveBufferBytes(plan, role) : 0;
  if (!sharesMemory) {
    need.communicators = std::max<int64_t>(role.beside(plan::Beside::Communicators), 0);
    need.workspaces = std::max<int64_t>(role.beside(plan::Beside::Workspaces), 0);
  }
  return need;
}

/// Compares the pinned memory of this machine's ranks with what the machine has. Where devices
/// share its memory, their arenas include it.
Status checkPinned(const plan::Plan &plan, hal::Backend &backend, int64_t processes) {
  if (backend.devicesShareMemory())
    return Status::ok();
  int64_t needed = 0;
  auto count = static_cast<int64_t>(backend.devices().size());
  for (const hal::Device *device : backend.devices()) {
    const plan::Role &role = plan.roles[exec::roleOf(plan, device->rank())];
    int64_t bytes = role.arenaBytes[static_cast<size_t>(plan::Arena::Host)];
    if (__builtin_mul_overflow(bytes, processes, &bytes) ||
        __builtin_add_overflow(needed, bytes, &needed))
      needed = std::numeric_limits<int64_t>::max();
  }
  int64_t free = backend.devices().front()->bytesFree(hal::MemoryKind::Host);
  if (needed <= free)
    return Status::ok();
  int64_t ranks = count * processes;
  return makeStatus(report::NotEnoughMemory,
                    ranks == 1 ? "a rank needs" : fmt::format("{} ranks need", ranks),
                    plan::formatBytes(needed), plan::formatBytes(free),
                    plan::formatBytes(needed / ranks), "pinned memory of the machine");
}

} // namespace

/// Compares the memory of the rank that needs most with the free memory of the first device. Where
/// devices share memory, as on the host, the needs of all ranks on this machine are added. Sums
/// that overflow count as the largest number.
Status checkMemory(const plan::Plan &plan, hal::Backend &backend, int64_t processes) {
  int64_t each = 0;
  std::string parts;
  auto add = [&](std::string_view name, int64_t bytes, std::string_view how = "") {
    if (bytes <= 0)
      return;
    if (__builtin_add_overflow(each, bytes, &each))
      each = std::numeric_limits<int64_t>::max();
    parts +=
        fmt::format("{}{} {}{}", parts.empty() ? "" : ", ", name, plan::formatBytes(bytes), how);
  };
  RankNeed most; // the rank that needs most
  for (const hal::Device *device : backend.devices()) {
    RankNeed own = needOf(plan, plan.roles[exec::roleOf(plan, device->rank())], backend);
    if (own.sum() > most.sum())
      most = own;
  }
  add("arenas", most.arenas);
  add("receive buffers", most.receiveBuffers);
  add("communicators", most.communicators, " (predicted)");
  add("workspaces", most.workspaces, " (predicted)");
  // The device's free memory already lacks what contexts take, but not what libraries will take.
  if (!backend.devicesShareMemory())
    add("libraries", std::max<int64_t>(plan.job.derived.memoryLibrariesBytes, 0), " (predicted)");
  auto here = static_cast<int64_t>(backend.devices().size()) * processes;
  int64_t ranks = backend.devicesShareMemory() ? here : 1;
  int64_t needed = 0;
  if (__builtin_mul_overflow(each, ranks, &needed))
    needed = std::numeric_limits<int64_t>::max();
  int64_t free = backend.devices().front()->bytesFree(hal::MemoryKind::Work);
  if (needed <= free)
    return checkPinned(plan, backend, processes);
  if (backend.devicesShareMemory())
    parts += fmt::format("; 'shardc shrink R.recipe --ranks={}' makes a small copy", ranks);
  std::string who = ranks == 1 ? "a rank needs" : fmt::format("{} ranks need", ranks);
  return makeStatus(report::NotEnoughMemory, who, plan::formatBytes(needed),
                    plan::formatBytes(free), plan::formatBytes(each), parts);
}

namespace {

/// The words of a driver's device name in lower case: "NVIDIA H100 80GB HBM3" has nvidia, h100,
/// 80gb and hbm3.
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

/// The name that the device table would give a GPU: the first word of the driver's name with a
/// digit, from "rtx" on if it is a number alone; empty if there is none.
std::string kindOf(std::string_view name) {
  std::string series;
  for (const std::string &word : wordsOf(name)) {
    series = word == "rtx" || !series.empty() ? series + word : "";
    if (word.find_first_of("0123456789") != std::string::npos)
      return word.find_first_not_of("0123456789") == std::string::npos ? series : word;
  }
  return "";
}

} // namespace

Status checkTrace(std::string_view backendName, bool isTraced, bool withoutGraphs, bool opByOp) {
  if (backendName != "cuda" || !isTraced || !(withoutGraphs || opByOp))
    return Status::ok();
  return makeStatus(report::TraceWithoutGraphs, withoutGraphs ? "--no-graph" : "--check");
}

Status checkGpuCount(const plan::Plan &plan, const VisibleGpus &gpus, int64_t ranksHere) {
  if (gpus.count >= ranksHere)
    return Status::ok();
  std::string kind = isGpuOfKind(gpus.name, plan.needsGpu) ? "" : kindOf(gpus.name);
  return makeStatus(report::TooFewGpus, ranksHere, gpus.count,
                    gpus.count == 1 ? "GPU is" : "GPUs are", gpus.count,
                    kind.empty() ? "" : " --set cluster.gpu=" + kind,
                    gpus.count == 1 ? "it" : "them");
}

void judgeGpuKind(const plan::Plan &plan, const VisibleGpus &gpus, const ReportSink &emit) {
  std::string kind = kindOf(gpus.name);
  if (!plan.needsGpu.empty() && !kind.empty() && !isGpuOfKind(gpus.name, plan.needsGpu))
    emit(makeReport(report::OtherGpuKind, plan.needsGpu, plan::printable(gpus.name), kind));
}

Status compareKernels(hal::Peers *peers, std::string_view kernels, const ReportSink &emit) {
  if (!peers || peers->rank() == 0)
    emit(makeReport(report::KernelsOfRun, kernels));
  if (!peers)
    return Status::ok();
  ASSIGN_OR_RETURN(std::vector<hal::Peers::Kind> kinds,
                   peers->allKinds("comparing kernels", kernels));
  if (kinds.size() < 2)
    return Status::ok();
  return makeStatus(report::OtherKernels, kinds[0].ranks.front(), kinds[0].part,
                    kinds[1].ranks.front(), kinds[1].part);
}

void judgeKernels(std::string_view saved, std::string_view now, const ReportSink &emit) {
  if (!saved.empty() && saved != now)
    emit(makeReport(report::KernelsChanged, plan::printable(std::string(saved)),
                    now.empty() ? "those of the host" : now));
}

} // namespace shardc::run
