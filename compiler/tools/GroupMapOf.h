// The optimizer's parameter groups of a plan, numbered like Megatron's.
#pragma once

#include "runtime/checkpoint/GroupMap.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// One group per pair of learning-rate and weight-decay multipliers, in the order of
/// checkpoint::GroupKey.
checkpoint::GroupMap groupMapOf(const plan::Plan &plan);

/// Writes the groups to a new folder. Unavailable if another command is creating it.
Status makeGroupMap(const std::string &folder, const checkpoint::GroupMap &groups);
/// Writes the groups of a plan to a folder that print-torch-dcp-in-json reads. Does nothing if the
/// path is empty, or on a rank other than the first.
Status dumpGroupMap(const std::string &folder, const plan::Plan &plan);
/// Like dumpGroupMap(), for a plan in a file.
Status dumpGroupMapOf(const std::string &folder, const std::string &planPath);

} // namespace shardc::tools
