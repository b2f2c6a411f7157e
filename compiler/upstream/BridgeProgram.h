// What a program of Megatron-Bridge's configuration runs with: a script that stands in for the
// packages which the program imports, and the tables that the script reads.
#pragma once

#include <string>

#include "llvm/ADT/StringRef.h"

namespace shardc::upstream {

/// The script; its head says how it is called.
std::string bridgeStandin();

/// The fields of each section, the sections of classes, and upstream's functions, as JSON.
std::string bridgeTables();

/// Of upstream's recipe functions, by name, what their configurations have beyond those of
/// `_pretrain_common` and `*`, as JSON with a row in each line; or the name of another function.
llvm::StringRef bridgeRecipes();

} // namespace shardc::upstream
