// shardc ckpt group-map, print-torch-dcp-in-json: the first two steps of Megatron's conversion from
// torch_dist to fsdp_dtensor. The first one needs no training run here.

#include "compiler/tools/CkptTools.h"
#include "compiler/tools/GroupMapOf.h"
#include "compiler/tools/Session.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/GroupMap.h"

namespace shardc::tools {
namespace {

struct GroupMapOptions {
  CommonOptions common;
  std::string out;
};

int runGroupMap(const GroupMapOptions &options) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Session session(options.common);
  std::optional<config::Config> config =
      config::loadConfig(session.sources(), session.diags(), options.common.load);
  std::optional<checkpoint::GroupMap> groups;
  CompileOptions compileOptions;
  compileOptions.mustExecute = false;
  // The parameters are known once the model is lowered. Later steps may fail.
  compileOptions.afterLower = [&](const plan::Plan &plan) { groups = groupMapOf(plan); };
  if (config)
    compile(*config, session.sources(), session.diags(), options.common, compileOptions);
  if (ExitStatus status = session.finish(); status != kFine || !groups)
    return status == kFine ? kInputErrors : status;
  if (Status status = makeGroupMap(options.out, *groups); !status.isOk())
    return finishCkpt(status);
  printOut("optimizer groups of {} parameters are in '{}'\n", groups->size(), options.out);
  return kFine;
}

/// Prints what the upstream tool prints, and writes the same file.
int runPrint(const std::string &folder) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<std::string> content = checkpoint::groupMapLine(folder);
  if (!content.isOk())
    return finishCkpt(content.status());
  printOut("torch dcp content: {}\n", *content);
  checkpoint::FolderLock lock;
  Status status = lockOutput(folder, lock);
  if (status.isOk())
    status = checkpoint::writeGroupMapJson(folder);
  if (!status.isOk())
    return finishCkpt(status);
  printOut("Saved converted param_to_param_group_map to: {}/{}\n", folder,
           checkpoint::kGroupMapFile);
  return kFine;
}

} // namespace

void addCkptGroups(cli::Command &ckpt, int &status) {
  auto options = std::make_shared<GroupMapOptions>();
  cli::Command &map =
      ckpt.addCommand("group-map", "write the optimizer group of each parameter of a recipe");
  options->common.addTo(map);
  map.option("-o", options->out, "folder to write the map to, a checkpoint of numbers").required();
  map.onUse([options, &status] { status = runGroupMap(*options); });

  auto folder = std::make_shared<std::string>();
  cli::Command &print = ckpt.addCommand("print-torch-dcp-in-json",
                                        "print the map of a folder, and write it as JSON for "
                                        "convert");
  print.option("folder", *folder, "folder that group-map or --dump-param-to-param-group-map wrote")
      .required();
  print.onUse([folder, &status] { status = runPrint(*folder); });
}

} // namespace shardc::tools
