// Prints the contents of a checkpoint as JSON. Also formats parts that the text form shares: values
// of objects, and the optimizer's parameter groups.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/CheckpointView.h"

namespace shardc::tools {

/// The object with the common state of a torch_dist checkpoint.
inline constexpr std::string_view kCommonStateKey = "common_state/shard_0_1";

/// A parameter group: parameters with equal optimizer settings. torch_dist does not say which
/// parameters belong to a group.
struct InspectedGroup {
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> params;
};

/// The parameter groups: for torch_dist in stored order, otherwise in order of their first
/// parameter.
std::vector<InspectedGroup> groupsOf(const checkpoint::CheckpointView &view);

/// An object's value as text; its type if it is not a plain value.
std::string objectText(const checkpoint::CheckpointReader &reader, const std::string &name);
/// Like objectText(), for a value in the common state.
std::string leafText(const checkpoint::PyGraph &graph, checkpoint::PyId value);

/// A number as JSON; infinities and NaN become strings, since JSON lacks them.
nlohmann::ordered_json numberJson(double value);

/// The whole inspection as JSON: tensors with chunks, objects and small tensors with values,
/// parameter groups, files.
std::string inspectionJson(const checkpoint::CheckpointView &view, int64_t iteration);

} // namespace shardc::tools
