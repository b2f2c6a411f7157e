// Chooses the sizes of a small copy for a parallel layout.
#pragma once

#include <vector>

#include "compiler/config/Config.h"
#include "compiler/shrink/Layout.h"

namespace shardc::shrink {

/// An option's value in the copy.
struct Change {
  config::Opt option;
  config::Value value;
};

/// Collects the changes. Options that a rule derives are left out, since loading the copy derives
/// them again.
class Changes {
public:
  explicit Changes(const config::Config &config) : config_(config) {}

  /// Whether the option is set and no rule derives its value.
  bool isOwn(config::Opt option) const;
  /// Sets the option unless the recipe already has this value.
  void set(config::Opt option, config::Value value);
  void setInt(config::Opt option, int64_t value) { set(option, config::Value::ofInt(value)); }
  /// Like `setInt`, but only if `isOwn(option)`.
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

/// Chooses layers, heads, widths, vocabulary, experts and sequence length: small, but divisible by
/// the layout's axes. `scale` multiplies the head size and the sequence length.
void shrinkModel(const config::Config &config, const Layout &layout, int64_t scale,
                 Changes &changes);

/// Sets the mesh, batch sizes and numbers of steps, and gives checkpoints other folders than the
/// recipe's.
void shrinkRun(const config::Config &config, const Layout &layout, Changes &changes);

} // namespace shardc::shrink
