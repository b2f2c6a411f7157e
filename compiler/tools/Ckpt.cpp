// shardc ckpt: inspects, compares, verifies and converts checkpoints.
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/Commands.h"
#include "runtime/base/CommandLine.h"

namespace shardc::tools {

void addKeptNames(cli::Command &command, checkpoint::KeptNames &names) {
  command
      .option("--keep-name", names,
              "a class or function (module.name) that copied objects may use although shardc "
              "does not know it")
      .repeatable();
}

void addThreads(cli::Command &command, int &threads) {
  command
      .option("--threads", threads, "threads of each rank; default: 1 if there are several ranks")
      .threadCount()
      .showsDefault(std::to_string(defaultThreads()));
}

void addCkpt(cli::Command &app, int &status) {
  cli::Command &ckpt = app.addCommand("ckpt", "inspect, check, compare and convert checkpoints");
  ckpt.requireCommand();
  addCkptList(ckpt, status);
  addCkptInspect(ckpt, status);
  addCkptVerify(ckpt, status);
  addCkptDiff(ckpt, status);
  addCkptConvert(ckpt, status);
  addCkptHf(ckpt, status);
  addCkptMerge(ckpt, status);
  addCkptReshard(ckpt, status);
  addCkptGroups(ckpt, status);
}

} // namespace shardc::tools
