#include "runtime/tools/Options.h"

#include <CLI/CLI.hpp>

#include "runtime/base/ExitStatus.h"
#include "runtime/tools/Backends.h"

namespace shardc::tools {

std::optional<RunToolOptions> parseCommandLine(int argc, char **argv, int &status) {
  RunToolOptions options;
  CLI::App app("Runs a placed plan.", "shardc-run");
  auto *path = app.add_option("plan", options.planPath, "the plan's file");
  auto *fd = app.add_option("--plan-fd", options.planFd, "reads the plan from this file descriptor")
                 ->check(CLI::NonNegativeNumber);
  path->excludes(fd);
  app.add_option("--recipe", options.recipe,
                 "the recipe that the plan is from; the job's secret may lie beside it");
  app.add_option("--refuse", options.refuse,
                 "joins a launched job only to report to the other ranks why this one cannot run");
  app.add_option("--backend", options.backend, "backend; default: the plan's")
      ->check(CLI::IsMember(backendNames()));
  app.add_option("--metrics", options.metrics, "writes one JSON object per step to this file");
  app.add_option("--trace", options.trace, "writes a trace of some steps to this file");
  app.add_flag(
      "--check", options.check,
      "runs op by op; stops at the first result that is not finite or write out of bounds");
  app.add_flag("--explain", options.explain,
               "prints the kernel of each op without running the plan");
  app.add_flag("--no-graph", options.noGraph, "launches every op separately, without graphs");
  app.add_option("--nodes-ahead", options.nodesAhead,
                 "largest number of graph nodes queued on a GPU; 0: no limit")
      ->group("") // for measurements
      ->check(CLI::NonNegativeNumber);
  app.add_option("--product-sms", options.productMultiprocessors,
                 "multiprocessors for products that run concurrently with NCCL's kernels; 0: all")
      ->group("")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--products-beside", options.productsBeside,
                 "number of products after each NCCL collective to which --product-sms applies")
      ->group("")
      ->check(CLI::PositiveNumber);
  app.add_flag("--processes", options.processes,
               "starts a process for each rank on this machine; not needed under a launcher");
  app.add_option(
         "--simulate-ranks", options.simulateRanks,
         "runs all ranks of a plan for another backend on this machine; the number must be the "
         "plan's")
      ->check(CLI::PositiveNumber);
  app.add_option("--workers", options.workers, "threads that execute ops; default: one per core")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed-schedule", options.scheduleSeed,
                 "runs ready ops in random order, with poisoned and guarded memory");
  app.add_option("--dump", options.dumps,
                 "SEGMENT:VALUE or SEGMENT:@CELL to write to files; a final * matches any ending")
      ->take_all();
  app.add_option("--dump-dir", options.dumpFolder, "folder for --dump");
  app.add_option("--dump-step", options.dumpStep, "step whose values --dump writes")
      ->check(CLI::PositiveNumber);
  app.set_version_flag("--version", versionLines, "print version, backends and libraries");
  try {
    app.parse(argc, argv);
    if (options.planPath.empty() && options.planFd < 0 && options.refuse.empty())
      throw CLI::RequiredError("plan");
  } catch (const CLI::ParseError &error) {
    status = app.exit(error) == 0 ? 0 : kUsageStatus;
    return std::nullopt;
  }
  return options;
}

} // namespace shardc::tools
