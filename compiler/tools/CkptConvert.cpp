// shardc ckpt convert: converts Megatron's torch_dist to fsdp_dtensor, which Megatron FSDP loads,
// and back. Runs as a single process, or as one of the ranks that torchrun, srun or mpirun started.
#include <fmt/format.h>
#include <sstream>

#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Reports.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::tools {
namespace {

using checkpoint::ConvertOptions;
using checkpoint::ConvertProgress;
using checkpoint::ConvertRank;
using checkpoint::SaveTarget;
using checkpoint::TorchDistCheckpoint;

struct ConvertCommand {
  std::string in, out, groupFile, swigluModules;
  std::string weightType;
  int threads = 0; ///< 0: as many as fit the number of ranks
  ConvertOptions options;
  checkpoint::ConvertBackOptions back;
};

/// Runs a conversion of the checkpoint that the command names.
int runRanks(const ConvertCommand &command,
             const std::function<Status(const std::string &in, const SaveTarget &,
                                        const ConvertRank &, const ConvertProgress &)> &convert) {
  std::string in;
  auto findTarget = [&]() -> Result<SaveTarget> {
    ASSIGN_OR_RETURN(CkptEnds ends, findEnds(command.in, command.out));
    in = std::move(ends.in);
    return std::move(ends.target);
  };
  return runOnRanks({in, command.out, "converting", command.threads, findTarget,
                     [&](const auto &...work) { return convert(in, work...); }});
}

/// Whether the run that saved the checkpoint had gated layers.
bool saysSwiglu(const TorchDistCheckpoint &dist) {
  for (const checkpoint::CommonLeaf &leaf : dist.common()) {
    if (checkpoint::nameOfPath(leaf.path) != "args")
      continue;
    for (const auto &[name, value] : plainArguments(dist.commonGraph(), leaf.value))
      if (name == "swiglu" && value.as<bool>() != nullptr)
        return *value.as<bool>();
  }
  return false;
}

/// Remarks on differences that a user would otherwise notice only when loading the result.
void remarkOptions(const std::string &in, const ConvertOptions &options) {
  Result<TorchDistCheckpoint> dist = TorchDistCheckpoint::open(in, options.weightsOnly);
  if (!dist.isOk())
    return; // the conversion reports it
  if (!options.isSwiglu && options.swigluModules.empty() && saysSwiglu(*dist))
    reportCkpt(makeReport(report::GatedNotSplit));
  bool hasState = false;
  for (const auto &[key, box] : dist->params())
    hasState = hasState || key.second == checkpoint::StoredPart::ExpAvg;
  if (hasState && !options.groups)
    reportCkpt(makeReport(report::SettingsNotWritten));
}

std::vector<std::string> splitAtCommas(const std::string &text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty())
      parts.push_back(part);
  return parts;
}

int runToFsdp(ConvertCommand command) {
  command.options.swigluModules = splitAtCommas(command.swigluModules);
  return runRanks(command, [&](const std::string &in, const SaveTarget &target,
                               const ConvertRank &rank, const ConvertProgress &progress) {
    if (!command.groupFile.empty()) {
      ASSIGN_OR_RETURN(command.options.groups, checkpoint::readGroupMapJson(command.groupFile));
    }
    if (rank.rank == 0)
      remarkOptions(in, command.options);
    command.options.progress = progress;
    command.options.emit = reportCkpt;
    return convertTorchDistToFsdp(in, target, command.options, rank);
  });
}

int runToTorchDist(ConvertCommand command) {
  command.back.weightsOnly = command.options.weightsOnly;
  command.back.keptNames = command.options.keptNames;
  if (!command.weightType.empty())
    command.back.weightType = checkpoint::elementOfTorchName(command.weightType);
  return runRanks(command, [&](const std::string &in, const SaveTarget &target,
                               const ConvertRank &rank, const ConvertProgress &progress) {
    command.back.progress = progress;
    command.back.emit = reportCkpt;
    return convertFsdpToTorchDist(in, target, command.back, rank);
  });
}

cli::Command &addDirection(cli::Command &convert, const char *name, const char *help,
                           ConvertCommand &command) {
  cli::Command &app = convert.addCommand(name, help);
  app.option("in", command.in, "a checkpoint, or a folder of checkpoints").required();
  app.option("out", command.out, "output: a folder of checkpoints, or a folder iter_*").required();
  app.flag("--weights-only", command.options.weightsOnly, "omit optimizer state");
  addThreads(app, command.threads);
  addKeptNames(app, command.options.keptNames);
  return app;
}

void addToFsdp(cli::Command &convert, int &status) {
  auto command = std::make_shared<ConvertCommand>();
  cli::Command &app =
      addDirection(convert, "torch-dist-to-fsdp-dtensor",
                   "convert a checkpoint of DDP or the distributed optimizer for Megatron "
                   "FSDP",
                   *command);
  ConvertOptions &options = command->options;
  app.flag("--swiglu", options.isSwiglu, "split the first layer of every MLP into gate and up");
  app.option("--swiglu-modules", command->swigluModules,
             "only below these modules, separated by commas");
  app.option("--param-to-param-group-map-json", command->groupFile,
             "optimizer group of each parameter, from print-torch-dcp-in-json");
  app.flag("--rename-mtp-keys", options.renamesMtp,
           "write mtp_model_layer where Megatron FSDP reads transformer_layer");
  app.flag("--keep-model-dtype", options.keepsModelDtype,
           "use the model's own weights, not the fp32 master weights");
  app.option("--output-model-weight-prefix", options.modelPrefix, "prefix of the names of weights")
      .showsDefault();
  app.option(
      "--output-optimizer-state-prefix", options.optimizerPrefix,
      "prefix of the names of optimizer state; default: optimizer.state.module.module.module, with "
      "one .module less for a run in fp32");
  app.onUse([command, &status] { status = runToFsdp(*command); });
}

void addToTorchDist(cli::Command &convert, int &status) {
  auto command = std::make_shared<ConvertCommand>();
  cli::Command &app = addDirection(convert, "fsdp-dtensor-to-torch-dist",
                                   "convert a checkpoint of Megatron FSDP for DDP", *command);
  app.option("--weight-dtype", command->weightType,
             "type of the model's own weights; default: the type in which they are saved")
      .oneOf({"float32", "bfloat16", "float16"});
  app.onUse([command, &status] { status = runToTorchDist(*command); });
}

} // namespace

void addCkptConvert(cli::Command &ckpt, int &status) {
  cli::Command &convert = ckpt.addCommand("convert", "convert one format into another");
  convert.requireCommand();
  addToFsdp(convert, status);
  addToTorchDist(convert, status);
}

} // namespace shardc::tools
