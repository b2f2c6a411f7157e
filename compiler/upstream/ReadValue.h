// Converts values that upstream's files or command lines contain to values of options.
#pragma once

#include <optional>
#include <vector>

#include "compiler/config/Config.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Converts `tree` to a value of `type`; empty if it is not one. Words are parsed, so that command
/// lines, YAML and Python give the same values.
std::optional<config::Value> readValue(const config::OptionType &type, const Tree &tree);

/// Evaluates a Python expression for a list of integers, such as `([0]*3+[1]*58)`: upstream
/// describes kinds of layers this way. Empty if the text is not one, or for more than 100,000
/// elements.
std::optional<std::vector<int64_t>> readPattern(llvm::StringRef text);

} // namespace shardc::upstream
