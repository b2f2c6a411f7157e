// Makes a small copy of a recipe: the same job for fewer ranks, with smaller sizes. The copy keeps
// all options, and as many axes of parallelism as fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/config/Steps.h"
#include "compiler/shrink/Layout.h"
#include "compiler/shrink/Sizes.h"

namespace shardc::shrink {

struct SmallCopy {
  Layout layout;
  std::vector<Change> changes; ///< in the order of the option table
  config::Config config;       ///< the recipe with the changes
};

/// Makes a copy for `ranks` ranks of a recipe that has no errors. `load` are the options with which
/// the recipe was loaded. Reports an error and returns empty if the recipe has fewer ranks, or if
/// no layout passes the rules; then the error contains the nearest number of ranks that works.
/// Warns of each axis reduced to one rank, and of each option that a rule changes only in the copy.
std::optional<SmallCopy> makeSmallCopy(const config::Config &config,
                                       const config::LoadOptions &load, int64_t ranks,
                                       DiagEngine &diags);

/// How the copy's text refers to the recipe.
struct TextOptions {
  std::string name;               ///< name of the copy
  std::vector<std::string> bases; ///< paths for `extends`; if empty, the text contains all options
};

/// The copy as a recipe in canonical layout; a comment after each changed value contains the old
/// value. With bases, the text contains only the differences from them, including options from the
/// command line.
std::string textOf(const config::Config &original, const SmallCopy &copy,
                   const TextOptions &options);

} // namespace shardc::shrink
