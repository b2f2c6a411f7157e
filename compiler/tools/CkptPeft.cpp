// shardc ckpt import peft, export peft, merge: converts adapters from and to the form of Hugging
// Face's PEFT, and adds adapters to weights.
#include <fmt/format.h>

#include "compiler/model/Adapters.h"
#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/HfFields.h"
#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/plan/Text.h"

namespace shardc::tools {
namespace {

using checkpoint::FolderLock;
using checkpoint::PeftSettings;

struct PeftCommand {
  std::string in, out, base, config, weightType;
  int threads = defaultThreads();
};

std::vector<std::string> typesOfFactors() { return {"float32", "bfloat16", "float16"}; }

/// The parts of the model that the run's targets select, as compiling the recipe resolved them.
checkpoint::PeftParts partsOfTargets(const PeftSettings &settings,
                                     const checkpoint::HfConfig &config, const std::string &stem,
                                     int64_t layer) {
  model::AdaptedModel model;
  model.layers = config.layers;
  model.isLatent = config.layout == checkpoint::HfLayout::Deepseek;
  model.compressesQueries = config.qLoraRank > 0;
  model.isGated = checkpoint::hfOption(config.arch, "gated_linear_unit") == true;
  model.hasExperts = config.experts > 0;
  model.hasShared = config.sharedFfn > 0;
  std::vector<std::string> targets = settings.targets;
  if (targets.empty()) // like a recipe without targets
    return {};
  model::LayerAdapters found = model::AdapterTargets(targets, settings.exclude, model)
                                   .of(layer, stem.find("experts.") != std::string::npos);
  auto parts = found.find(stem);
  if (parts == found.end() || parts->second.isJoint)
    return {};
  return {false, parts->second.kept};
}

checkpoint::PeftOptions peftOptions(const PeftCommand &command) {
  checkpoint::PeftOptions options;
  options.configFolder = command.config;
  options.partsOf = partsOfTargets;
  options.emit = reportCkpt;
  options.observers = ckptObservers();
  options.weightType =
      checkpoint::elementOfTorchName(command.weightType).value_or(options.weightType);
  return options;
}

int exportAdapters(const PeftCommand &command) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<std::string> in = checkpoint::findCheckpoint(command.in);
  if (!in.isOk())
    return finishCkpt(in.status());
  StopOnSignal stop;
  FolderLock lock;
  Status status = lockOutput(command.out, lock);
  if (status.isOk())
    status = checkpoint::exportPeft(*in, command.out, peftOptions(command));
  if (status.isOk())
    printOut("exported the adapters of '{}' to '{}'\n", plan::printable(*in),
             plan::printable(command.out));
  return StopOnSignal::finish(status);
}

int importAdapters(const PeftCommand &command) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<checkpoint::SaveTarget> target = outputTarget(command.out, /*iteration=*/0);
  if (!target.isOk())
    return finishCkpt(target.status());
  StopOnSignal stop;
  FolderLock lock;
  Status status = lockTarget(*target, lock);
  PeftSettings settings;
  if (status.isOk())
    status = checkpoint::importPeft(command.in, *target, peftOptions(command), settings);
  if (status.isOk()) {
    reportMade(command.in, *target);
    printOut("a recipe that goes on with them has\n"
             "  peft {} {{ rank = {}  alpha = {}  rslora = {}  dropout = {}\n"
             "    targets = {} }}\n",
             settings.scheme, settings.rank, settings.alpha, settings.isRslora, settings.dropout,
             toText(nlohmann::json(settings.targets)));
  }
  return StopOnSignal::finish(status);
}

int mergeAdapters(const PeftCommand &command) {
  if (std::optional<int> done = leftToFirst())
    return *done;
  Result<CkptEnds> ends = findEnds(command.in, command.out);
  if (!ends.isOk())
    return finishCkpt(ends.status());
  StopOnSignal stop;
  FolderLock lock;
  Status status = lockTarget(ends->target, lock);
  if (status.isOk()) {
    ProgressBar bar("merging");
    checkpoint::MergeOptions options;
    options.peft = peftOptions(command);
    options.peft.progress = bar.callback();
    if (!command.weightType.empty())
      options.weightType = options.peft.weightType;
    checkpoint::ConvertRank rank;
    rank.threads = command.threads;
    status = checkpoint::mergePeft(ends->in, command.base, ends->target, options, rank);
  }
  if (status.isOk())
    reportMade(ends->in, ends->target);
  return StopOnSignal::finish(status);
}

} // namespace

void addPeftImport(cli::Command &import, int &status) {
  auto command = std::make_shared<PeftCommand>();
  cli::Command &app =
      import.addCommand("peft", "adapters: adapter_config.json and adapter_model.safetensors");
  app.option("in", command->in, "input").required();
  app.option("out", command->out, "output").required();
  app.option("--config", command->config, "folder of the base model, with its config.json")
      .required();
  app.onUse([command, &status] { status = importAdapters(*command); });
}

void addPeftExport(cli::Command &outer, int &status) {
  auto command = std::make_shared<PeftCommand>();
  cli::Command &app =
      outer.addCommand("peft", "adapters: adapter_config.json and adapter_model.safetensors");
  app.option("in", command->in, "input").required();
  app.option("out", command->out, "output").required();
  app.option("--config", command->config,
             "folder of the base model, with its config.json; default: what the run carried along");
  app.option("--weight-dtype", command->weightType, "type of the factors")
      .oneOf(typesOfFactors())
      .showsDefault("float32");
  app.onUse([command, &status] { status = exportAdapters(*command); });
}

void addCkptMerge(cli::Command &ckpt, int &status) {
  auto command = std::make_shared<PeftCommand>();
  cli::Command &app =
      ckpt.addCommand("merge", "add adapters to the weights that they were trained for");
  app.option("adapters", command->in, "a checkpoint of adapters, or a folder of such").required();
  app.option("base", command->base, "a checkpoint, or the folder of a Hugging Face model")
      .required();
  app.option("out", command->out, "output: a folder of checkpoints, or a folder iter_*").required();
  app.option("--config", command->config,
             "folder of the base model, with its config.json; default: what the run carried along");
  app.option("--weight-dtype", command->weightType, "type of the weights; default: as in the base")
      .oneOf(typesOfFactors());
  app.option("--threads", command->threads, "threads that write").threadCount().showsDefault();
  app.onUse([command, &status] { status = mergeAdapters(*command); });
}

} // namespace shardc::tools
