// shardc ckpt: looks at checkpoints, compares, checks and converts them.
#include <CLI/CLI.hpp>

#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"

namespace shardc::tools {

void addCkpt(CLI::App &app, int &status) {
  CLI::App *ckpt = app.add_subcommand("ckpt", "look at, check, compare and convert checkpoints");
  ckpt->require_subcommand(1);
  addCkptInspect(*ckpt, status);
  addCkptVerify(*ckpt, status);
  addCkptDiff(*ckpt, status);
  addCkptConvert(*ckpt, status);
  addCkptHf(*ckpt, status);
  addCkptReshard(*ckpt, status);
  addCkptGroups(*ckpt, status);
}

} // namespace shardc::tools
