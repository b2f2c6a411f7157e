// Output of `shardc tune`: the table of layouts, the comparison of two layouts, and the overlay
// that selects one.
#pragma once

#include "compiler/tools/TuneSearch.h"

namespace shardc::tools {

/// The fastest layout of each kind, at most `most`.
std::vector<const Tuned *> bestOfKinds(const TuneResult &result, size_t most);

/// One row per layout: its choices, its memory, where its time is spent, and what limits it.
std::string tableText(const std::vector<const Tuned *> &rows, const config::Derived &d,
                      int64_t memoryBytes);

/// The legend of that table.
std::string columnsText();

/// The number of layouts, and why most were not compiled.
std::string countsText(const TuneResult &result);

/// One line of JSON per compiled layout: those that fit, fastest first, then the others.
std::string listText(const TuneResult &result, const config::Derived &d);

/// Explains why the faster of two layouts is faster: choices that differ, and components of the
/// time.
std::string comparisonText(const Tuned &first, const Tuned &second, const std::string &nameOfFirst,
                           const std::string &nameOfSecond);

/// An overlay of `config` with the settings of `tuned`.
std::string overlayText(const config::Config &config, const config::Config &tuned,
                        const std::vector<std::string> &sets, const std::string &heading);

} // namespace shardc::tools
