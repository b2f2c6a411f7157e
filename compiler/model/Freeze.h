// The parts of a model that are not trained (`model.freeze`), or that alone are trained beside
// adapters (`peft.modules_to_save`).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/model/ParamKinds.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

/// Selects parameters by location, by kind, by both, or by the module that has them.
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
    std::string module;              ///< the path of one module; empty: any

    bool names(ParamKind ofKind, std::string_view name, plan::UnitKind unit, int64_t layer) const;
  };
  std::vector<Entry> entries;
  bool isInverse = false; ///< entries name what is trained, in addition to adapters
  std::string problem;    ///< the reason why the text is invalid; empty if it is valid

  bool isValid() const { return problem.empty(); }
  bool freezesNothing() const { return entries.empty() && !isInverse; }
  /// `name`: path of the parameter; `layer`: number of the decoder layer.
  bool has(ParamKind kind, std::string_view name, plan::UnitKind unit, int64_t layer) const;
};

/// Parses entries. An entry is a kind of ParamKinds.def, such as `embedding`; a location: `mtp`,
/// `base`, `layers`, `layers.3` or `layers.0-11`; or both: `layers.0-11.experts`; or a module by
/// Megatron-Core's path: `decoder.final_layernorm`. `layers`: the number of layers of the model.
Frozen readFrozen(std::span<const std::string> entries, int64_t layers);
/// Parses the modules that are trained in addition to adapters: such entries, or Hugging Face's
/// `embed_tokens` and `lm_head`.
Frozen readSaved(std::span<const std::string> entries, int64_t layers, bool isTied);
/// The text of an entry.
std::string frozenText(const Frozen::Entry &entry);

} // namespace shardc::model
