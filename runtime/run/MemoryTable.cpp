// Formats the tables of memory. All sizes are those of one rank.
#include "runtime/run/MemoryTable.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/plan/Execution.h"
#include "runtime/plan/Summary.h"

namespace shardc::run {
namespace {

/// Bytes of an arena that cells occupy. Cells may overlap.
int64_t bytesKept(const plan::Role &role, plan::Arena arena) {
  std::vector<std::pair<int64_t, int64_t>> held;
  for (const plan::Cell &cell : role.cells)
    if (cell.place.placed && cell.place.arena == arena)
      held.emplace_back(cell.place.offset, cell.place.offset + cell.bytes());
  std::ranges::sort(held);
  int64_t at = 0, kept = 0;
  for (auto [begin, end] : held) {
    kept += std::max<int64_t>(end - std::max(begin, at), 0);
    at = std::max(at, end);
  }
  return kept;
}

/// The bytes of cells in an arena by purpose. What is left of the arena is for temporary tensors
/// and padding.
std::string purposesOf(const plan::Role &role, plan::Arena arena) {
  std::array<int64_t, plan::kPurposeCount> bytes{};
  for (const plan::Cell &cell : role.cells)
    if (cell.place.placed && cell.place.arena == arena)
      bytes[static_cast<size_t>(cell.purpose)] += cell.bytes();
  std::string text;
  auto add = [&](std::string_view name, int64_t count) {
    if (count > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, plan::formatBytes(count));
  };
  for (size_t p = 0; p < bytes.size(); ++p)
    add(plan::toString(static_cast<plan::Purpose>(p)), bytes[p]);
  add("temporary tensors and padding",
      role.arenaBytes[static_cast<size_t>(arena)] - bytesKept(role, arena));
  return text;
}

} // namespace

std::string memoryTable(const plan::Role &role, int64_t workspaceBytes,
                        int64_t receiveBufferBytes) {
  // The compiler has reported the plan's part; kernels and channels need more.
  int64_t planned = 0, beside = workspaceBytes + receiveBufferBytes;
  for (int64_t bytes : role.arenaBytes)
    planned += bytes;
  std::string text = fmt::format("memory per rank: {} planned", plan::formatBytes(planned));
  text += beside > 0 ? fmt::format(", plus {} kernel scratch\n", plan::formatBytes(beside)) : "\n";
  auto add = [&](std::string_view name, int64_t bytes, const std::string &what) {
    if (bytes > 0)
      text += fmt::format("  {:<15} {:>10}  {}\n", name, plan::formatBytes(bytes), what);
  };
  for (size_t a = 0; a < role.arenaBytes.size(); ++a)
    add(plan::toString(static_cast<plan::Arena>(a)), role.arenaBytes[a],
        purposesOf(role, static_cast<plan::Arena>(a)));
  add("workspaces", workspaceBytes, "scratch of kernels, one for each stream");
  add("receive buffers", receiveBufferBytes, "inputs of sums over ranks, one for each channel");
  return text;
}

/// One row for each stage of the set-up: the memory in use after it, less that before it, beside
/// what the compiler predicted. A prediction below 0 means that there is none.
std::string deviceMemoryTable(const plan::Plan &plan, const plan::Role &role,
                              const exec::MemoryStages &stages) {
  if (stages.total == 0)
    return "";
  constexpr double kMiB = 1 << 20;
  auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  int64_t arenas = 0;
  for (size_t a = 0; a < role.arenaBytes.size(); ++a)
    arenas += static_cast<plan::Arena>(a) == plan::Arena::Host ? 0 : role.arenaBytes[a];
  std::string rows;
  int64_t predictedTotal = 0;
  bool isPredicted = true;
  auto add = [&](std::string_view name, int64_t bytes, int64_t predicted) {
    isPredicted = isPredicted && predicted >= 0;
    predictedTotal += predicted;
    rows += fmt::format("  {:<15} {:>10.1f}", name, mib(bytes));
    rows += predicted >= 0 ? fmt::format(" {:>10.1f}\n", mib(predicted)) : "\n";
  };
  const plan::Job::Derived &predicted = plan.job.derived;
  add("context", stages.begin, predicted.memoryContextBytes);
  add("arenas", stages.arenas - stages.begin, arenas);
  add("communicators", stages.channels - stages.arenas - stages.receiveBuffers,
      role.beside(plan::Beside::Communicators));
  for (const auto &[name, bytes] : stages.communicators)
    rows += fmt::format("    {:<13} {:>10.1f}\n", name, mib(bytes));
  add("receive buffers", stages.receiveBuffers, role.beside(plan::Beside::ReceiveBuffers));
  add("workspaces", stages.workspaces - stages.channels, role.beside(plan::Beside::Workspaces));
  add("libraries", stages.end - stages.workspaces, predicted.memoryLibrariesBytes);
  std::string head =
      fmt::format("device memory: {:.1f} of {:.1f} MiB in use", mib(stages.end), mib(stages.total));
  if (isPredicted)
    head += fmt::format("; {:.1f} predicted, {:+.1f}", mib(predictedTotal),
                        mib(stages.end - predictedTotal));
  if (stages.graphs > 0)
    rows += fmt::format("graphs: {} with {} nodes, captured in {:.2f} s; predicted {}\n",
                        stages.graphs, stages.nodes, stages.captureSeconds,
                        plan::toString(plan::graphsOf(plan, role)));
  return fmt::format("{}\n  {:<15} {:>10}{}\n{}", head, "MiB", "in use",
                     isPredicted ? fmt::format(" {:>10}", "predicted") : "", rows);
}

} // namespace shardc::run
