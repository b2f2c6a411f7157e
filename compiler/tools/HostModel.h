// Opens a model that a command runs on one rank of the host: a checkpoint, possibly one of
// adapters, or the folder of a Hugging Face model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/tools/Session.h"
#include "runtime/base/Status.h"
#include "runtime/checkpoint/ModelWeights.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// The location of a model, and of the Hugging Face files beside it.
struct ModelPlace {
  std::string folder;   ///< a checkpoint, or a folder of Hugging Face
  std::string hfFolder; ///< with config.json; empty if there is none
  bool isHf = false;
};

Result<ModelPlace> findModel(const std::string &path);

/// The configuration of the model on one rank, from the recipe that its run kept or from
/// config.json, with `sets` on top. Empty after errors, which are reported.
Result<std::optional<config::Config>>
configOf(const ModelPlace &place, const std::vector<std::string> &sets, Session &session);

/// The weights of a model. A tensor is read from the first source that has it.
class HostWeights {
public:
  Status add(const std::string &folder);
  /// See generate::ReadTensor.
  Status read(const std::string &name, const plan::Type &type, void *dst) const;

private:
  std::vector<checkpoint::ModelWeights> sources_;
};

/// Opens the weights. For adapters, adds those of the base model: `base` or, if that is empty, the
/// one for which their run trained them.
Result<HostWeights> openWeights(const ModelPlace &place, std::string base, const plan::Plan &plan);

} // namespace shardc::tools
