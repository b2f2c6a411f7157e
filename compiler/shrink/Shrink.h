// Small copies of big jobs: the recipe for fewer ranks, with sizes that still divide, in which no
// option is lost and every axis of parallelism that the ranks can hold stays.
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
  config::Config config;       ///< of the recipe with the changes
};

/// The copy of a recipe without errors, on `ranks` ranks. `load` says where the recipe was read
/// from. Reports an error, and returns nothing, where the recipe has fewer ranks, or where no
/// layout of so many ranks passes the rules; that one names the nearest number that does. Warns of
/// axes that the ranks do not hold, and of options that a rule changes in the copy alone.
std::optional<SmallCopy> makeSmallCopy(const config::Config &config,
                                       const config::LoadOptions &load, int64_t ranks,
                                       DiagEngine &diags);

/// How the text of a copy names the recipe that it was made from.
struct TextOptions {
  std::string name;               ///< of the copy
  std::vector<std::string> bases; ///< what it extends, as it writes them; empty: it stands alone
};

/// The recipe of a copy in canonical layout, with what each changed value was. With bases, only
/// what differs from them is written, settings of the command line included.
std::string textOf(const config::Config &original, const SmallCopy &copy,
                   const TextOptions &options);

} // namespace shardc::shrink
