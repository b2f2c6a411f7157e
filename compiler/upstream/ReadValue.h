// Converts upstream's form of a value to the value of an option.
#pragma once

#include <optional>

#include "compiler/config/Config.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// The tree as a value of this type; nothing if it is of another one. Words count as what they
/// spell, so that command lines, YAML and Python read alike.
std::optional<config::Value> readValue(const config::OptionType &type, const Tree &tree);

/// Whether the word names an enumerator-like thing that the option's kind does not have, so that
/// the value is one of upstream's own rather than a slip of the pen.
bool isForeignEnumerator(const config::OptionType &type, const Tree &tree);

} // namespace shardc::upstream
