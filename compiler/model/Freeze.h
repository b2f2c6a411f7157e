// The parts of a model that are not trained (`model.freeze`).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/model/ParamKinds.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

/// Parameters by their place, by kinds, or by both.
struct Frozen {
  static constexpr int64_t kLast = std::numeric_limits<int64_t>::max(); ///< up to the last layer
  enum class Place : uint8_t {
    Model,
    Layers, ///< of the decoder
    Mtp,    ///< the multi-token prediction layers
    Base    ///< all but that
  };
  struct Entry {
    Place place = Place::Model;
    int64_t first = 0, last = kLast; ///< of Layers
    std::optional<ParamKind> kind;   ///< none: all
  };
  std::vector<Entry> entries;
  std::string problem; ///< why the text is none, in words; empty if it is one

  bool isValid() const { return problem.empty(); }
  /// `layer`: the number of a layer of the decoder.
  bool has(ParamKind kind, plan::UnitKind unit, int64_t layer) const;
};

/// Each entry is a kind of ParamKinds.def, `embedding`; or a place, `mtp`, `base`, `layers`,
/// `layers.3` or `layers.0-11`; or a kind in a place, `layers.0-11.experts`. The model has `layers`
/// layers.
Frozen readFrozen(std::span<const std::string> entries, int64_t layers);
/// The text of an entry.
std::string frozenText(const Frozen::Entry &entry);

} // namespace shardc::model
