#include "compiler/tools/HostModel.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/lower/Lower.h"
#include "compiler/passes/Passes.h"
#include "compiler/tools/CkptTools.h"
#include "compiler/tools/ImportHf.h"
#include "runtime/base/Json.h"
#include "runtime/base/UntrustedFolder.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/RunState.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

namespace shardc::tools {
namespace {

constexpr const char *kConfigFile = "config.json";

/// Splits a line that a run wrote for a shell into words. Words are plain or in single quotes.
std::vector<std::string> wordsOf(std::string_view line) {
  std::vector<std::string> words(1);
  bool isQuoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\'')
      isQuoted = !isQuoted;
    else if (isQuoted || (line[i] != ' ' && line[i] != '\n' && line[i] != '\\'))
      words.back() += line[i];
    else if (line[i] == '\\' && i + 1 < line.size())
      words.back() += line[++i];
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty())
    words.pop_back();
  return words;
}

/// Adds settings for the adapters of a checkpoint, if the model is described by config.json.
Status addAdapters(const std::string &folder, std::vector<std::string> &sets) {
  ASSIGN_OR_RETURN(auto saved, checkpoint::ParamSource::openCheckpoint(folder));
  std::vector<std::string> names = saved->names();
  if (std::ranges::none_of(
          names, [](const std::string &n) { return n.find(".adapter.") != std::string::npos; }))
    return Status::ok();
  ASSIGN_OR_RETURN(checkpoint::PeftSettings peft, checkpoint::readPeftSettings(saved->reader()));
  auto list = [](const auto &of) { return toText(nlohmann::json(of)); };
  sets.push_back("peft.scheme=" + peft.scheme);
  sets.push_back(fmt::format("peft.rank={}", peft.rank));
  sets.push_back(fmt::format("peft.alpha={}", peft.alpha));
  sets.push_back(fmt::format("peft.rslora={}", peft.isRslora));
  if (!peft.targets.empty())
    sets.push_back("peft.targets=" + list(peft.targets));
  sets.push_back(fmt::format("peft.lora_bias={}", peft.hasBiases));
  if (!peft.targetAlphas.empty())
    sets.push_back("peft.target_alphas=" + list(peft.targetAlphas));
  if (!peft.exclude.empty())
    sets.push_back("peft.exclude=" + list(peft.exclude));
  return Status::ok();
}

} // namespace

Result<ModelPlace> findModel(const std::string &path) {
  if (checkpoint::isHfModel(path))
    return ModelPlace{path, path, true};
  ModelPlace place;
  ASSIGN_OR_RETURN(place.folder, checkpoint::findCheckpoint(path));
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(place.folder));
  if (in.has(checkpoint::kHfFolder)) {
    ASSIGN_OR_RETURN(UntrustedFolder kept, in.folder(checkpoint::kHfFolder));
    place.hfFolder = kept.has(kConfigFile) ? kept.path() : "";
  }
  return place;
}

constexpr uint64_t kBytesMax = 16 << 20;

Result<bool> readKeptRecipe(const std::string &folder, SourceManager &sources,
                            config::LoadOptions &load) {
  ASSIGN_OR_RETURN(UntrustedFolder in, UntrustedFolder::open(folder));
  if (!in.has(std::string(checkpoint::kRecipeFolder) + "/command.txt"))
    return false;
  ASSIGN_OR_RETURN(UntrustedFolder kept, in.folder(checkpoint::kRecipeFolder));
  ASSIGN_OR_RETURN(std::vector<std::string> names, kept.listBelow(/*levels=*/8));
  ASSIGN_OR_RETURN(std::string line, kept.read("command.txt", kBytesMax));
  llvm::SmallString<256> recipes(folder);
  llvm::sys::path::append(recipes, checkpoint::kRecipeFolder);
  llvm::SmallString<256> shorter = recipes; // as paths of bases are
  llvm::sys::path::remove_dots(shorter, /*remove_dot_dot=*/true);
  if (llvm::sys::fs::equivalent(recipes, shorter))
    recipes = shorter;
  auto pathOf = [&](const std::string &name) { return (recipes + "/" + name).str(); };
  for (const std::string &name : names) { // the recipe, its bases and overlays lie in the folder
    ASSIGN_OR_RETURN(std::string text, kept.read(name, kBytesMax));
    sources.addFile(pathOf(name), std::move(text));
  }
  sources.closeFiles();
  std::vector<std::string> words = wordsOf(line), sets, overlays; // shardc run RECIPE [--set ...]
  for (size_t i = 2; i < words.size(); ++i)
    if (words[i] == "--set" && i + 1 < words.size())
      sets.push_back(words[++i]);
    else if (words[i] == "--overlay" && i + 1 < words.size())
      overlays.push_back(pathOf(words[++i]));
    else
      load.path = pathOf(words[i]);
  load.sets.insert(load.sets.begin(), sets.begin(), sets.end());
  load.overlays.insert(load.overlays.begin(), overlays.begin(), overlays.end());
  return true;
}

/// The configuration of a model for one rank of the host. A checkpoint of a run has its recipe and
/// its command line; otherwise a config.json is imported.
Result<std::optional<config::Config>>
configOf(const ModelPlace &place, const std::vector<std::string> &sets, Session &session) {
  config::LoadOptions load;
  load.oneRank = sets;
  bool hasRecipe = false;
  if (!place.isHf) {
    ASSIGN_OR_RETURN(hasRecipe, readKeptRecipe(place.folder, session.sources(), load));
  }
  if (hasRecipe)
    return config::loadConfig(session.sources(), session.diags(), load);
  if (place.hfFolder.empty())
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' keeps neither the recipe of its run nor a config.json; 'shardc ckpt "
                      "export hf' makes a model with one",
                      place.folder);
  const std::string path = fmt::format("{}/{}", place.hfFolder, kConfigFile);
  ASSIGN_OR_RETURN(std::string text,
                   UntrustedFolder::readIn(place.hfFolder, kConfigFile, kBytesMax));
  BufferId input = session.sources().addBuffer(path, text);
  upstream::ImportOptions options;
  options.name = "model";
  DiagEngine quiet(session.sources()); // drops messages about options that an import leaves open
  config::registerGroups(quiet);
  std::optional<std::string> recipe = importHf(input, {}, options, quiet);
  if (!recipe)
    recipe = importHf(input, {}, options, session.diags());
  if (!recipe)
    return std::optional<config::Config>();
  if (!place.isHf)
    RETURN_IF_ERROR(addAdapters(place.folder, load.sets));
  return config::loadConfig(session.sources(), session.diags(),
                            session.sources().addBuffer("imported.recipe", *recipe), load);
}

plan::Plan forwardPlan(const config::Config &config, const SourceManager &sources, int64_t rows,
                       int64_t samples) {
  using enum passes::PassId;
  plan::Plan plan = lower::lowerForward(config, sources, rows, samples);
  passes::Notes notes;
  for (passes::PassId pass : {FuseBias, FuseQkvRope, FuseResidualNorm})
    passes::runPass(pass, plan, notes);
  return plan;
}

std::vector<plan::Plan> forwardPlans(const config::Config &config, const SourceManager &sources,
                                     int64_t tokens) {
  constexpr int64_t kRowsMax = 512; // the scores of so many tokens are held at once
  std::vector<plan::Plan> plans;
  for (int64_t rows = 1; rows == 1 || rows <= std::min(tokens, kRowsMax); rows *= 2)
    plans.push_back(forwardPlan(config, sources, rows));
  return plans;
}

Result<std::vector<std::string>> weightFolders(const ModelPlace &place, std::string base,
                                               const plan::Plan &plan) {
  if (!plan.job.peft.scheme)
    return std::vector{place.folder};
  if (base.empty()) {
    ASSIGN_OR_RETURN(auto saved, checkpoint::ParamSource::openCheckpoint(place.folder));
    base = checkpoint::peftBaseOf(saved->reader());
  }
  if (base.empty())
    base = plan.job.checkpoint.pretrainedCheckpoint;
  if (base.empty())
    return makeStatus(StatusCode::InvalidInput,
                      "'{}' has adapters and does not say for which weights; name them with --base",
                      place.folder);
  return std::vector{place.folder, base};
}

} // namespace shardc::tools
