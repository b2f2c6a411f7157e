// shardc fit: prints memory by purpose, the memory of the device, the needs of other settings, and
// other splits of the same ranks.
#include <fmt/format.h>

#include "compiler/basic/Numbers.h"
#include "compiler/lower/Lower.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Overheads.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
#include "compiler/tools/FitSplits.h"
#include "runtime/base/CommandLine.h"
#include "runtime/plan/Summary.h"
#include "llvm/Support/raw_ostream.h"

namespace shardc::tools {
namespace {

void printMemory(const plan::Plan &plan) {
  const plan::Role &role = predict::largestRole(plan);
  if (plan.roles.size() > 1)
    llvm::outs() << fmt::format("of the role that needs most, {}: {}\n", role.name, role.why);
  plan::MemoryByPurpose memory = plan::memoryByPurpose(role);
  llvm::outs() << fmt::format("{:<18} {:>14} {:>14}\n", "purpose", "kept", "at the peak");
  for (int p = 0; p < plan::kPurposeCount; ++p) {
    auto index = static_cast<size_t>(p);
    if (memory.cells[index] + memory.transient[index] > 0)
      llvm::outs() << fmt::format(
          "{:<18} {:>14} {:>14}\n", plan::toString(static_cast<plan::Purpose>(p)),
          plan::formatBytes(memory.cells[index]), plan::formatBytes(memory.transient[index]));
  }
  for (int a = 0; a < plan::kArenaCount; ++a) {
    auto arena = static_cast<plan::Arena>(a);
    llvm::outs() << fmt::format("arena {:<12} {:>14}\n", plan::toString(arena),
                                plan::formatBytes(role.arenaBytes[static_cast<size_t>(a)]));
  }
}

/// Marks what is larger than the device's memory.
const char *fitsText(const config::Derived &d, int64_t bytes) {
  return d.memoryBytes > 0 && bytes > d.memoryBytes ? "  does not fit" : "";
}

void printDevice(const config::Derived &d, const plan::Plan &plan) {
  if (!d.gpu.has_value())
    return;
  const predict::Device &device = predict::device(*d.gpu);
  llvm::outs() << fmt::format(
      "device {}: {} of {}{}\n", device.name.str(), plan::formatBytes(deviceBytesOf(plan)),
      d.memoryBytes > 0 ? plan::formatBytes(d.memoryBytes) : "whatever the machine has",
      device.measured || device.isHost() ? "" : " (figures of this device are not measured)");
  for (const std::string &line : predictionText(plan))
    llvm::outs() << "  " << line << "\n";
}

/// Memory and step of the same recipe without fp8.
void printWithoutFp8(const config::Config &config, const CommonOptions &options) {
  if (!config.has(config::Opt::ModelFp8))
    return;
  std::optional<plan::Plan> plan =
      planWith(options, {"mixed_precision.fp8=none", "model.fp8=none"});
  if (!plan)
    return;
  std::optional<predict::StepTime> time = predictedStep(*plan);
  llvm::outs() << fmt::format("without fp8: {}{}\n", plan::formatBytes(deviceBytesOf(*plan)),
                              time ? ", predicted step " + formatDuration(time->step) : "");
}

/// Splits of the same ranks that are printed.
constexpr size_t kSplitsMax = 12;

void printSplits(const config::Config &config, const plan::Plan &plan,
                 const CommonOptions &options) {
  const config::Derived &d = config.derived();
  if (d.worldSize == 1)
    return;
  std::vector<Split> splits = trySplits(config, plan, options);
  llvm::outs() << fmt::format("splits of the {} ranks, this recipe's first:\n"
                              "  {:>4} {:>4} {:>4} {:>6} {:>14} {:>14} {:>12}\n",
                              d.worldSize, "tp", "cp", "pp", "data", "memory", "step", "tokens/s");
  auto tokens = static_cast<double>(d.globalBatch * d.seqLength) / static_cast<double>(d.worldSize);
  for (size_t i = 0; i < std::min(splits.size(), kSplitsMax); ++i) {
    const Split &split = splits[i];
    bool isTimed = split.seconds > 0;
    llvm::outs() << fmt::format(
        "  {:>4} {:>4} {:>4} {:>6} {:>14} {:>14} {:>12}{}\n", split.tensor, split.context,
        split.pipeline, split.data, plan::formatBytes(split.bytes),
        isTimed ? formatDuration(split.seconds) : "-",
        isTimed ? formatNumber(tokens / split.seconds) : "-", fitsText(d, split.bytes));
  }
  if (splits.size() > kSplitsMax)
    llvm::outs() << fmt::format("  and {} slower ones\n", splits.size() - kSplitsMax);
}

int runFit(const CommonOptions &options) {
  Session session(options);
  if (ExitStatus status = session.applyFlags(); status != kFine)
    return status;
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.load);
  if (!config)
    return session.finish();
  for (const lower::Missing &item : lower::findMissing(*config))
    session.diags().report(diag::MissingOp, config->range(item.option),
                           config::info(item.option).path,
                           config::toRecipeText(*config, item.option), item.what);
  if (session.diags().hasErrors())
    return session.finish();
  plan::Plan plan = lower::lower(*config, session.sources());
  passes::Notes notes;
  passes::runPipeline(plan, {}, notes);
  printMemory(plan);
  printDevice(config->derived(), plan);
  printWithoutFp8(*config, options);
  llvm::outs() << "other settings:\n";
  for (const FitChange &change : tryChanges(*config, options))
    llvm::outs() << fmt::format("  {:<70} {:>12}{}\n", change.what, plan::formatBytes(change.bytes),
                                fitsText(config->derived(), change.bytes));
  printSplits(*config, plan, options);
  reportFit(*config, plan, session.diags(), options);
  return session.finish();
}

} // namespace

void addFit(cli::Command &app, int &status) {
  auto options = std::make_shared<CommonOptions>();
  cli::Command &command =
      app.addCommand("fit", "memory by purpose; what would make the recipe fit");
  options->addTo(command);
  command.onUse([options, &status] { status = runFit(*options); });
}

} // namespace shardc::tools
