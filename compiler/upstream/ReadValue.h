// Converts upstream's form of a value to the value of an option.
#pragma once

#include <optional>

#include "compiler/config/Config.h"
#include "compiler/upstream/Tree.h"

namespace shardc::upstream {

/// The tree as a value of this type; nothing if it is of another one. Words count as what they
/// spell, so that command lines, YAML and Python read alike.
std::optional<config::Value> readValue(const config::OptionType &type, const Tree &tree);

/// Whether the word looks like an enumerator of upstream that the option does not have, rather than
/// a misspelt one.
bool isForeignEnumerator(const config::OptionType &type, const Tree &tree);

} // namespace shardc::upstream
