// Converts values that upstream's files or command lines contain to values of options.
#pragma once

#include <optional>

#include "compiler/config/Config.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// Converts `tree` to a value of `type`; empty if it is not one. Words are parsed, so that command
/// lines, YAML and Python give the same values.
std::optional<config::Value> readValue(const config::OptionType &type, const Tree &tree);

} // namespace shardc::upstream
