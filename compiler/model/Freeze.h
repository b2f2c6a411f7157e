// What of a model is not trained (`model.freeze`).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/model/ParamKinds.h"

namespace shardc::model {

/// Parameters by layers, by kinds, or by both.
struct Frozen {
  static constexpr int64_t kLast = std::numeric_limits<int64_t>::max(); ///< up to the last layer
  struct Entry {
    bool isOfLayers = false; ///< else of the whole model
    int64_t first = 0, last = kLast;
    std::optional<ParamKind> kind; ///< none: all
  };
  std::vector<Entry> entries;
  std::string problem; ///< why the text is none, in words; empty if it is one

  bool isValid() const { return problem.empty(); }
  /// Of a layer of the decoder; -1: of another unit.
  bool has(ParamKind kind, int64_t layer) const;
};

/// Each entry is a kind of ParamKinds.def, `embedding`; or layers, `layers`, `layers.3` or
/// `layers.0-11`; or a kind in layers, `layers.0-11.experts`. The model has `layers` layers.
Frozen readFrozen(std::span<const std::string> entries, int64_t layers);
/// The text of an entry.
std::string frozenText(const Frozen::Entry &entry);

} // namespace shardc::model
