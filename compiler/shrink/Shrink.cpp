#include "compiler/shrink/Shrink.h"

#include <algorithm>

#include "llvm/ADT/STLExtras.h"

namespace shardc::shrink {
namespace {

using config::Config;
using config::LoadOptions;
using config::Opt;

/// Maximum number of layouts to try per number of ranks.
constexpr size_t kLayoutsTried = 16;

/// Factors for the length of heads and sequences, tried in this order, since the smallest sizes may
/// violate a rule. The last attempt keeps the recipe's model sizes, which every smaller layout
/// divides.
constexpr int64_t kKeepsModel = 0;
constexpr int64_t kScales[] = {1, 2, 4, kKeepsModel};

/// `path=value`, as `--set` reads it.
std::string settingOf(const Change &change) {
  const config::OptionInfo &info = config::info(change.option);
  return info.path.str() + "=" + toRecipeText(change.value, info.type);
}

std::vector<Change> changesFor(const Config &config, const Layout &layout, int64_t scale) {
  Changes changes(config);
  if (scale != kKeepsModel)
    shrinkModel(config, layout, scale, changes);
  shrinkRun(config, layout, changes);
  std::vector<Change> all = changes.take();
  llvm::stable_sort(all, [](const Change &a, const Change &b) { return a.option < b.option; });
  return all;
}

/// Loads the recipe with the changes; empty if it has errors.
std::optional<Config> load(LoadOptions options, const std::vector<Change> &changes) {
  for (const Change &change : changes)
    options.sets.push_back(settingOf(change));
  SourceManager sources;
  DiagEngine diags(sources);
  return config::loadConfig(sources, diags, options);
}

/// Takes the first valid combination of layout and scale.
std::optional<SmallCopy> tryRanks(const Config &config, const LoadOptions &options, int64_t ranks) {
  std::vector<Layout> layouts = layoutsFor(config, ranks);
  layouts.resize(std::min(layouts.size(), kLayoutsTried));
  for (const Layout &layout : layouts)
    for (int64_t scale : kScales) {
      std::vector<Change> changes = changesFor(config, layout, scale);
      if (std::optional<Config> small = load(options, changes))
        return SmallCopy{layout, std::move(changes), std::move(*small)};
    }
  return std::nullopt;
}

/// The number of ranks closest to `ranks` for which a copy exists; of two equally close numbers,
/// the smaller.
int64_t nearestRanks(const Config &config, const LoadOptions &options, int64_t ranks) {
  int64_t most = config.derived().worldSize;
  for (int64_t away = 1; away < most; ++away)
    for (int64_t near : {ranks - away, ranks + away})
      if (near >= 1 && near <= most && tryRanks(config, options, near))
        return near;
  return most;
}

/// Warns of each written option that has another value in the copy although the copy did not change
/// it.
void reportAdjusted(const Config &config, const SmallCopy &copy, DiagEngine &diags) {
  for (const config::OptionInfo &info : config::options()) {
    bool isChanged =
        llvm::any_of(copy.changes, [&](const Change &c) { return c.option == info.opt; });
    if (isChanged || !config.isWritten(info.opt) ||
        config[info.opt].value == copy.config[info.opt].value)
      continue;
    diags.report(diag::ShrinkOptionChanged, SourceRange(), info.path,
                 toRecipeText(config, info.opt), toRecipeText(copy.config, info.opt));
  }
}

} // namespace

std::optional<SmallCopy> makeSmallCopy(const Config &config, const LoadOptions &options,
                                       int64_t ranks, DiagEngine &diags) {
  if (int64_t most = config.derived().worldSize; ranks > most) {
    diags.report(diag::ShrinkTooManyRanks, SourceRange(), ranks, most);
    return std::nullopt;
  }
  std::optional<SmallCopy> copy = tryRanks(config, options, ranks);
  if (!copy) {
    diags.report(diag::ShrinkNoLayout, SourceRange(), ranks, nearestRanks(config, options, ranks));
    return std::nullopt;
  }
  for (const LostAxis &axis : lostAxes(config, copy->layout))
    diags.report(diag::ShrinkAxisLost, SourceRange(), axis.name, axis.size, ranks);
  reportAdjusted(config, *copy, diags);
  return copy;
}

} // namespace shardc::shrink
