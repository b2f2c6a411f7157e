// The texts of `shardc tune`: the table of what was found, why one layout beats another, and the
// overlay that chooses it.
#pragma once

#include "compiler/tools/TuneSearch.h"

namespace shardc::tools {

/// The fastest layout of each kind, at most so many.
std::vector<const Tuned *> bestOfKinds(const TuneResult &result, size_t most);

/// A row for each layout: its choices, what it needs, where its time goes, and its next limit.
std::string tableText(const std::vector<const Tuned *> &rows, const config::Derived &d,
                      int64_t memoryBytes);

/// What the columns of that table say.
std::string columnsText();

/// How many layouts there are, and why most of them were not compiled.
std::string countsText(const TuneResult &result);

/// A line of JSON for each layout that was compiled: those that fit, the fastest first, and then
/// the others.
std::string listText(const TuneResult &result, const config::Derived &d);

/// Why the faster of two layouts is faster: choices that differ, and parts of the time.
std::string comparisonText(const Tuned &first, const Tuned &second, const std::string &nameOfFirst,
                           const std::string &nameOfSecond);

/// A recipe that, laid over `config`, has the settings; `tuned` is the configuration with them.
std::string overlayText(const config::Config &config, const config::Config &tuned,
                        const std::vector<std::string> &sets, const std::string &heading);

} // namespace shardc::tools
