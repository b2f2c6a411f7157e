// Opens a model that a command runs on one rank of the host: a checkpoint, possibly one of
// adapters, or the folder of a Hugging Face model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/tools/Session.h"
#include "runtime/base/Status.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// The location of a model, and of the Hugging Face files beside it.
struct ModelPlace {
  std::string folder;   ///< a checkpoint, or the folder of a Hugging Face model
  std::string hfFolder; ///< with config.json; empty if there is none
  bool isHf = false;
};

/// Decides which of the two is at the path.
Result<ModelPlace> findModel(const std::string &path);

/// Reads the recipe, bases and overlays that a run kept in its save, and sets `load` as the run's
/// command did; what `load` has stays on top. No other file can be read then. False if the save has
/// no recipe.
Result<bool> readKeptRecipe(const std::string &folder, SourceManager &sources,
                            config::LoadOptions &load);

/// The configuration of the model on one rank, from the recipe that its run kept or from
/// config.json, with `sets` on top. Empty after errors, which are reported.
Result<std::optional<config::Config>>
configOf(const ModelPlace &place, const std::vector<std::string> &sets, Session &session);

/// The model's forward body of `rows` consecutive tokens of each sample, with fused ops.
plan::Plan forwardPlan(const config::Config &config, const SourceManager &sources, int64_t rows,
                       int64_t samples = 1);

/// The model's forward bodies of 1, 2, 4, ... rows, the last for as many as `tokens` or fewer. They
/// read a text of any length (generate::Generator).
std::vector<plan::Plan> forwardPlans(const config::Config &config, const SourceManager &sources,
                                     int64_t tokens);

/// The folders of the model's weights, for checkpoint::WeightSources. For adapters, the second is
/// that of the base model: `base` or, if that is empty, the one for which their run trained them.
Result<std::vector<std::string>> weightFolders(const ModelPlace &place, std::string base,
                                               const plan::Plan &plan);

} // namespace shardc::tools
