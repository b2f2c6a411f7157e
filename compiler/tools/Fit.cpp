// shardc fit: prints memory by purpose, the memory of the device, and the needs of other settings.
#include <fmt/format.h>

#include "compiler/lower/Lower.h"
#include "compiler/predict/DeviceTable.h"
#include "compiler/predict/Overheads.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/FitCheck.h"
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
  llvm::outs() << "other settings:\n";
  for (const FitChange &change : tryChanges(*config, options))
    llvm::outs() << fmt::format("  {:<70} {:>12}{}\n", change.what, plan::formatBytes(change.bytes),
                                config->derived().memoryBytes > 0 &&
                                        change.bytes > config->derived().memoryBytes
                                    ? "  does not fit"
                                    : "");
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
