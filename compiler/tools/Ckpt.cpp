// shardc ckpt: inspects, compares, verifies and converts checkpoints.
#include <CLI/CLI.hpp>

#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "compiler/tools/NumberOptions.h"
#include "runtime/checkpoint/RecordFiles.h"

namespace shardc::tools {

void addKeptNames(CLI::App &command, checkpoint::KeptNames &names) {
  command
      .add_option("--keep-name", names,
                  "a class or function (module.name) that copied objects may use although shardc "
                  "does not know it")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void addThreads(CLI::App &command, int &threads) {
  command
      .add_option("--threads", threads,
                  "threads of each rank; default: 1 if there are several ranks")
      ->check(threadCount())
      ->default_str(std::to_string(defaultThreads()));
}

void addCkpt(CLI::App &app, int &status) {
  CLI::App *ckpt = app.add_subcommand("ckpt", "inspect, check, compare and convert checkpoints");
  ckpt->require_subcommand(1);
  checkpoint::onUncheckedRecords([](const std::string &sentence) { sayCkpt("warning", sentence); });
  addCkptInspect(*ckpt, status);
  addCkptVerify(*ckpt, status);
  addCkptDiff(*ckpt, status);
  addCkptConvert(*ckpt, status);
  addCkptHf(*ckpt, status);
  addCkptReshard(*ckpt, status);
  addCkptGroups(*ckpt, status);
}

} // namespace shardc::tools
