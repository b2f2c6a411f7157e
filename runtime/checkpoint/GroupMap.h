// The optimizer group of each parameter: steps one and two of Megatron's conversion from
// `torch_dist` to `fsdp_dtensor`. A folder that a run dumped is a DCP checkpoint with one number
// per parameter; its JSON form is the input of the conversion.
#pragma once

#include <map>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {

/// Group by parameter name, plain spelling.
using GroupMap = std::map<std::string, int64_t>;

inline constexpr const char *kGroupMapFile = "param_to_param_group_map.json";

/// Writes the folder that `--dump-param-to-param-group-map` writes: keys `module.module.<name>`.
/// Replaces an older one; InvalidInput if the folder holds anything else.
Status writeGroupMapFolder(const std::string &folder, const GroupMap &groups);
/// The JSON of such a folder: every `module.module` in a key as `modelPrefix`, two spaces deep, in
/// the checkpoint's order.
Result<std::string> groupMapJson(const std::string &folder,
                                 const std::string &modelPrefix = "model.module");
/// The numbers under the keys that are in the folder, in one line, as Python's json prints it.
Result<std::string> groupMapLine(const std::string &folder);
/// Writes groupMapJson as `param_to_param_group_map.json` into the folder.
Status writeGroupMapJson(const std::string &folder);
/// Reads such a JSON file.
Result<GroupMap> readGroupMapJson(const std::string &path);

} // namespace shardc::checkpoint
