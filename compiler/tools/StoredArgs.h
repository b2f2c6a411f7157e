// Reads the arguments that Megatron-LM stores in checkpoints, as a tree for the importer.
#pragma once

#include <string>

#include "compiler/upstream/Tree.h"
#include "runtime/base/Status.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::tools {

/// A plain Python value as a tree.
upstream::TreePtr treeOf(const checkpoint::PlainValue &value);

/// Whether the path looks like a checkpoint: a folder, or a file that torch.save wrote.
bool isCheckpoint(const std::string &path);

/// The `args` of a checkpoint: of a folder with `.metadata` or `common.pt`, of a parent of such
/// folders (the latest is used), or of a `.pt` file. NotFound or InvalidInput tells what is
/// missing.
Result<upstream::TreePtr> readStoredArgs(const std::string &path);

} // namespace shardc::tools
