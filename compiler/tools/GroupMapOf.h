// The optimizer groups of a plan's parameters, numbered as Megatron numbers them.
#pragma once

#include "runtime/checkpoint/GroupMap.h"
#include "runtime/plan/Plan.h"

namespace shardc::tools {

/// A group for each pair of multipliers of rate and decay, in the order of checkpoint::GroupKey.
checkpoint::GroupMap groupMapOf(const plan::Plan &plan);

/// Writes them as a folder, which no other command makes meanwhile: Unavailable if one does.
Status makeGroupMap(const std::string &folder, const checkpoint::GroupMap &groups);
/// Makes a plan's, a folder that print-torch-dcp-in-json reads; nothing for an empty path, and on
/// other ranks than the first.
Status dumpGroupMap(const std::string &folder, const plan::Plan &plan);
/// The same for a plan's file.
Status dumpGroupMapOf(const std::string &folder, const std::string &planPath);

} // namespace shardc::tools
