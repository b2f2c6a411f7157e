// The contents of a checkpoint as JSON, and the parts that the text form prints too: values of
// objects and the optimizer's groups.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/CheckpointView.h"

namespace shardc::tools {

/// The object that holds the common state of a torch_dist checkpoint.
inline constexpr std::string_view kCommonStateKey = "common_state/shard_0_1";

/// Parameters with the same optimizer settings. torch_dist does not say which those are.
struct InspectedGroup {
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> params;
};

/// The groups in order: of torch_dist as they are listed, else by the first parameter of each.
std::vector<InspectedGroup> groupsOf(const checkpoint::CheckpointView &view);

/// An object's value for people; what it is if it is not plain.
std::string objectText(const checkpoint::CheckpointReader &reader, const std::string &name);
/// The same of a value in the common state.
std::string leafText(const checkpoint::PyGraph &graph, checkpoint::PyId value);

/// JSON has neither infinities nor NaN; they are strings.
nlohmann::ordered_json numberJson(double value);

/// Tensors with their chunks, objects and small tensors with their values, groups, files.
std::string inspectionJson(const checkpoint::CheckpointView &view, int64_t iteration);

} // namespace shardc::tools
