// The sizes of a small copy, given its parallel layout.
#pragma once

#include <vector>

#include "compiler/config/Config.h"
#include "compiler/shrink/Layout.h"

namespace shardc::shrink {

/// What a small copy sets.
struct Change {
  config::Opt option;
  config::Value value;
};

/// Collects what changes. A value that a rule derives follows by itself and is left out.
class Changes {
public:
  explicit Changes(const config::Config &config) : config_(config) {}

  /// Whether the option has a value that no rule derives from others.
  bool isOwn(config::Opt option) const;
  /// Sets the option, unless the recipe has this value already.
  void set(config::Opt option, config::Value value);
  void setInt(config::Opt option, int64_t value) { set(option, config::Value::ofInt(value)); }
  /// The same for an option that a rule may derive.
  void setOwn(config::Opt option, int64_t value) {
    if (isOwn(option))
      setInt(option, value);
  }
  void clear(config::Opt option) { set(option, {}); }

  std::vector<Change> take() { return std::move(changes_); }

private:
  const config::Config &config_;
  std::vector<Change> changes_;
};

inline int64_t roundUp(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

/// Layers, heads, widths, vocabulary, experts and sequence, small but divisible as the layout needs
/// it. `scale` makes the heads and the sequence that many times longer.
void shrinkModel(const config::Config &config, const Layout &layout, int64_t scale,
                 Changes &changes);

/// Mesh, batches, counts of steps, and folders of checkpoints, which would otherwise be those of
/// the recipe.
void shrinkRun(const config::Config &config, const Layout &layout, Changes &changes);

} // namespace shardc::shrink
