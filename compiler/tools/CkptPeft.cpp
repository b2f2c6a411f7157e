// shardc ckpt import peft, export peft, merge: converts adapters from and to the form of Hugging
// Face's PEFT, and adds adapters to weights.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "compiler/model/Adapters.h"
#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/HfFields.h"
#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/checkpoint/PeftLayers.h"
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

model::AdaptedModel adaptedModel(const checkpoint::HfConfig &config) {
  model::AdaptedModel model;
  using model::FeedForward, model::Mixer;
  const bool isLatent = config.layout == checkpoint::HfLayout::Deepseek,
             hasExperts = config.layout != checkpoint::HfLayout::Dense && config.experts > 1;
  constexpr Mixer kMixers[] = {Mixer::None, Mixer::Attention, Mixer::ShortConv, Mixer::DeltaNet,
                               Mixer::Mamba}; // in the order of HfMixer
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const Mixer mixer = kMixers[static_cast<size_t>(config.mixerOf(layer))];
    model.layers.push_back({isLatent && mixer == Mixer::Attention ? Mixer::Latent : mixer,
                            !config.hasFeedForward(layer)            ? FeedForward::None
                            : hasExperts && config.hasExperts(layer) ? FeedForward::Experts
                                                                     : FeedForward::Dense});
  }
  model.compressesQueries = config.qLoraRank > 0;
  model.isGated = checkpoint::hfOption(config.arch, "gated_linear_unit") == true;
  model.hasShared = config.sharedFfn > 0;
  return model;
}

/// The parts of the model that the run's targets select, as compiling the recipe resolved them.
checkpoint::PeftParts partsOfTargets(const PeftSettings &settings,
                                     const checkpoint::HfConfig &config, const std::string &stem,
                                     int64_t layer) {
  std::vector<std::string> targets = settings.targets;
  if (targets.empty()) // like a recipe without targets
    return {};
  const model::AdaptedModel model = adaptedModel(config);
  model::LayerAdapters found =
      model::AdapterTargets(targets, settings.targetAlphas, settings.exclude, model).of(layer);
  auto parts = found.find(stem);
  if (parts == found.end())
    return {};
  return {parts->second.isJoint, parts->second.kept, parts->second.alphas};
}

/// The kind of parameter that a recipe names, by the longest ending that matches; null without one.
const model::ParamKindInfo *kindOf(std::string_view name) {
  const model::ParamKindInfo *found = nullptr;
  size_t longest = 0;
  for (const model::ParamKindInfo &kind : model::kParamKinds)
    for (std::string_view rest = kind.names; !rest.empty();) {
      std::string_view end = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(end.size() + 1, rest.size()));
      if (name.ends_with(end) && end.size() > longest)
        found = &kind, longest = end.size();
    }
  return found;
}

/// Takes the shortest list that selects exactly these layers: last names as PEFT has them, patterns
/// for all layers, or one path for each. A kind of parameters is named if all of it is saved;
/// otherwise each module, or the parameters of modules that have others, such as a matrix and the
/// norm in front of it.
void nameForRecipe(const checkpoint::HfConfig &config,
                   const std::vector<checkpoint::HfParam> &params,
                   const std::vector<checkpoint::PeftLinear> &linears,
                   const std::vector<std::string> &saved, PeftSettings &settings) {
  std::vector<model::LayerAdapters> wanted(static_cast<size_t>(config.layers));
  std::map<std::string, double> words, patterns, paths; // with the alpha of each
  const bool isMixed = std::ranges::any_of(linears, [&](const checkpoint::PeftLinear &linear) {
    return std::ranges::any_of(linear.modules, [&](const checkpoint::PeftModule &module) {
      return module.slice >= 0 && module.alpha != settings.alpha;
    });
  });
  for (const checkpoint::PeftLinear &linear : linears) {
    model::AdapterParts &parts = wanted.at(static_cast<size_t>(linear.layer))[linear.stem];
    parts.isJoint = linear.modules.size() == 1 || linear.isOfExperts();
    for (size_t i = 0; i < linear.modules.size(); ++i) {
      const checkpoint::PeftModule &module = linear.modules[i];
      if (module.slice < 0)
        continue;
      const model::AdapterParts own{parts.isJoint ? 0 : uint64_t{1} << i, parts.isJoint};
      parts.kept |= own.kept;
      if (isMixed)
        parts.setAlpha(parts.isJoint ? 0 : static_cast<int>(i), module.alpha);
      words.emplace(checkpoint::lastWordOf(module.name), module.alpha);
      for (auto &[list, of] :
           {std::pair(&patterns, std::string("*")), {&paths, fmt::to_string(linear.layer)}})
        for (std::string &path : model::pathsOf(of, {{linear.stem, own}}))
          list->emplace(std::move(path), module.alpha);
    }
  }
  const model::AdaptedModel adapted = adaptedModel(config);
  for (const std::map<std::string, double> *list : {&words, &patterns, &paths}) {
    settings.targets.clear(), settings.targetAlphas.clear();
    for (const auto &[target, alpha] : *list) {
      settings.targets.push_back(target);
      if (isMixed)
        settings.targetAlphas.push_back(alpha);
    }
    const model::AdapterTargets targets(settings.targets, settings.targetAlphas, {}, adapted);
    bool isExact = targets.problem().empty();
    for (size_t layer = 0; isExact && layer < wanted.size(); ++layer)
      isExact = targets.of(static_cast<int64_t>(layer)) == wanted[layer];
    if (isExact)
      break;
  }
  std::set<std::string> modules;
  const auto areSaved = [&](const auto &isOne) {
    return std::ranges::all_of(params, [&](const checkpoint::HfParam &param) {
      return param.isOnlyWritten || param.isOptional || !isOne(param.name) ||
             std::ranges::find(saved, param.name) != saved.end();
    });
  };
  for (const std::string &name : saved) {
    const model::ParamKindInfo *kind = kindOf(name);
    const std::string module = name.substr(0, name.rfind('.') + 1);
    if (kind != nullptr && areSaved([&](const auto &other) { return kindOf(other) == kind; }))
      modules.insert(kind->word == "embedding" ? "embed_tokens"
                     : kind->word == "head"    ? "lm_head"
                                               : std::string(kind->word));
    else if (areSaved([&](const auto &other) { return other.starts_with(module); }))
      modules.insert(module.substr(0, module.size() - 1));
    else
      modules.insert(name);
  }
  settings.modulesToSave.assign(modules.begin(), modules.end());
}

checkpoint::PeftOptions peftOptions(const PeftCommand &command) {
  checkpoint::PeftOptions options;
  options.configFolder = command.config;
  options.partsOf = partsOfTargets;
  options.names = nameForRecipe;
  options.emit = reportCkpt;
  options.observers = ckptObservers();
  options.weightType =
      checkpoint::elementOfTorchName(command.weightType).value_or(options.weightType);
  return options;
}

Status exportAdapters(const PeftCommand &command) {
  ASSIGN_OR_RETURN(std::string in, checkpoint::findCheckpoint(command.in));
  FolderLock lock;
  RETURN_IF_ERROR(lockOutput(command.out, lock));
  RETURN_IF_ERROR(checkpoint::exportPeft(in, command.out, peftOptions(command)));
  printOut("exported the adapters of '{}' to '{}'\n", plan::printable(in),
           plan::printable(command.out));
  return Status::ok();
}

Status importAdapters(const PeftCommand &command) {
  ASSIGN_OR_RETURN(checkpoint::SaveTarget target, outputTarget(command.out, /*iteration=*/0));
  FolderLock lock;
  RETURN_IF_ERROR(lockTarget(target, lock));
  PeftSettings settings;
  RETURN_IF_ERROR(checkpoint::importPeft(command.in, target, peftOptions(command), settings));
  reportMade(command.in, target);
  auto listOf = [](const auto &list) { return toText(nlohmann::json(list)); };
  printOut(
      "a recipe that goes on with them has\n"
      "  peft {} {{ rank = {}  alpha = {}  rslora = {}  dropout = {}{}\n"
      "    targets = {}{}{} }}\n{}",
      settings.scheme, settings.rank, settings.alpha, settings.isRslora, settings.dropout,
      settings.hasBiases ? "  lora_bias = true" : "", listOf(settings.targets),
      settings.targetAlphas.empty() ? "" : "\n    target_alphas = " + listOf(settings.targetAlphas),
      settings.modulesToSave.empty() ? ""
                                     : "\n    modules_to_save = " + listOf(settings.modulesToSave),
      settings.isUntied ? "and, since it trains one table of two that the base shares,\n"
                          "  model.share_embeddings_and_output_weights = false\n"
                        : "");
  return Status::ok();
}

Status mergeAdapters(const PeftCommand &command) {
  ASSIGN_OR_RETURN(CkptEnds ends, findEnds(command.in, command.out));
  FolderLock lock;
  RETURN_IF_ERROR(lockTarget(ends.target, lock));
  {
    ProgressBar bar("merging");
    checkpoint::MergeOptions options;
    options.peft = peftOptions(command);
    options.peft.progress = bar.callback();
    if (!command.weightType.empty())
      options.weightType = options.peft.weightType;
    checkpoint::ConvertRank rank;
    rank.threads = command.threads;
    RETURN_IF_ERROR(checkpoint::mergePeft(ends.in, command.base, ends.target, options, rank));
  }
  reportMade(ends.in, ends.target);
  return Status::ok();
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
  app.onUse([command, &status] { status = runOnFirst([&] { return importAdapters(*command); }); });
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
  app.onUse([command, &status] { status = runOnFirst([&] { return exportAdapters(*command); }); });
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
  app.onUse([command, &status] { status = runOnFirst([&] { return mergeAdapters(*command); }); });
}

} // namespace shardc::tools
