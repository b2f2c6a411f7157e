// A model that a command lets run on one rank of the host: a checkpoint, of adapters too, or the
// folder of a Hugging Face model.
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

/// Where a model lies, and the files of Hugging Face beside it.
struct ModelPlace {
  std::string folder;   ///< a checkpoint, or a folder of Hugging Face
  std::string hfFolder; ///< with config.json; empty if there is none
  bool isHf = false;
};

Result<ModelPlace> findModel(const std::string &path);

/// The configuration of the model on one rank: by the recipe that its run kept, or by config.json.
/// `sets` are over it. Nothing after diagnostics.
Result<std::optional<config::Config>>
configOf(const ModelPlace &place, const std::vector<std::string> &sets, Session &session);

/// The weights of a model: where one source has no tensor, the next one is asked.
class HostWeights {
public:
  Status add(const std::string &folder);
  /// See generate::ReadTensor.
  Status read(const std::string &name, const plan::Type &type, void *dst) const;

private:
  std::vector<checkpoint::ModelWeights> sources_;
};

/// Of adapters also those of `base`, or of what their run was for if that is empty.
Result<HostWeights> openWeights(const ModelPlace &place, std::string base, const plan::Plan &plan);

} // namespace shardc::tools
