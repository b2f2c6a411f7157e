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

/// Selects parameters by location, by kind, or by both.
struct Frozen {
  static constexpr int64_t kLast = std::numeric_limits<int64_t>::max(); ///< up to the last layer
  enum class Place : uint8_t {
    Model,
    Layers, ///< layers of the decoder
    Mtp,    ///< multi-token prediction layers
    Base    ///< everything except multi-token prediction layers
  };
  struct Entry {
    Place place = Place::Model;
    int64_t first = 0, last = kLast; ///< range of layers, for Layers
    std::optional<ParamKind> kind;   ///< empty: all kinds
  };
  std::vector<Entry> entries;
  std::string problem; ///< the reason why the text is invalid; empty if it is valid

  bool isValid() const { return problem.empty(); }
  /// `layer`: number of the decoder layer.
  bool has(ParamKind kind, plan::UnitKind unit, int64_t layer) const;
};

/// Parses entries. An entry is a kind of ParamKinds.def, such as `embedding`; a location: `mtp`,
/// `base`, `layers`, `layers.3` or `layers.0-11`; or both: `layers.0-11.experts`. `layers`: the
/// number of layers of the model.
Frozen readFrozen(std::span<const std::string> entries, int64_t layers);
/// The text of an entry.
std::string frozenText(const Frozen::Entry &entry);

} // namespace shardc::model
