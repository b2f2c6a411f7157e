// A job whose nodes each start one process (`--nodes`, or what operators of Kubernetes set): that
// process starts the ranks of its node, with torchrun's variables.
#pragma once

#include <optional>

#include "compiler/tools/Session.h"
#include "runtime/base/Launcher.h"

namespace shardc::tools {

/// Adds --nodes, --node-rank and --master.
void addNodes(cli::Command &command, NodeOptions &options);

/// Reads the options and the environment. Nothing if this process starts no ranks of a node; kUsage
/// in `status`, with a message, if something is missing.
std::optional<NodePlace> placeOfNode(const NodeOptions &options, ExitStatus &status);

/// Starts `ranks` copies of this process, in which the function returns nothing. This process waits
/// for them, passes signals on, and returns their largest exit status. Must be called while it has
/// one thread.
std::optional<int> startRanks(const NodePlace &place, int64_t ranks);

} // namespace shardc::tools
