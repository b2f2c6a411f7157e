// The optimizer group of each parameter, for the first two steps of Megatron's conversion from
// `torch_dist` to `fsdp_dtensor`. A run dumps a DCP checkpoint with one number per parameter. Its
// JSON form is the input of the conversion.
#pragma once

#include <map>
#include <string>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/DcpMetadata.h"

namespace shardc::checkpoint {

/// The number of the group, by plain name of the parameter.
using GroupMap = std::map<std::string, int64_t>;

inline constexpr const char *kGroupMapFile = "param_to_param_group_map.json";

/// Writes the same folder as `--dump-param-to-param-group-map`, with keys `module.module.<name>`.
/// Replaces an older one; InvalidInput if the folder contains anything else.
Status writeGroupMapFolder(const std::string &folder, const GroupMap &groups);
/// The JSON form of such a folder, indented by two spaces and in the checkpoint's order.
/// `module.module` in keys is replaced by `modelPrefix`.
Result<std::string> groupMapJson(const std::string &folder,
                                 const std::string &modelPrefix = "model.module");
/// The numbers with the keys of the folder, on one line, as Python's json module prints them.
Result<std::string> groupMapLine(const std::string &folder);
/// Writes the result of groupMapJson to `param_to_param_group_map.json` in the folder.
Status writeGroupMapJson(const std::string &folder);
/// Reads such a JSON file.
Result<GroupMap> readGroupMapJson(const std::string &path);

} // namespace shardc::checkpoint
