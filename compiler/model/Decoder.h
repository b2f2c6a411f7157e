// A decoder-only transformer as a list of units, each a list of modules: the embedding, layers, the
// head. Layers are of few kinds; a pattern says which kind each layer is.
#pragma once

#include <span>

#include "compiler/model/Freeze.h"
#include "compiler/model/Module.h"

namespace shardc::model {

/// What is gathered and reduced together.
struct Unit {
  plan::UnitKind kind;
  std::string name;        ///< of the plan's unit: `layers.3`
  std::string paramPrefix; ///< `decoder.layers.3.`
  std::string valuePrefix; ///< `l3.`
  const Modules *modules;
};

struct Decoder {
  Modules embedding;
  std::vector<Modules> kinds; ///< the modules of each kind of layer
  /// Kind of each layer; layers behind the end are of the last one.
  std::vector<uint8_t> pattern;
  int64_t numLayers = 1;
  Modules head;
  Modules prediction; ///< of a multi-token prediction block
  int64_t numPredictions = 0;

  size_t kindOf(int64_t layer) const;
  Unit embeddingUnit() const;
  Unit layerUnit(int64_t index) const;
  Unit headUnit() const;
  Unit predictionUnit(int64_t index) const;
  /// All units in the order of the forward pass.
  std::vector<Unit> units() const;
};

/// The parameters of a unit, under their complete names.
Params paramsOf(const Unit &unit);

/// The parameters of a unit, and of each whether it is frozen.
struct UnitParams {
  Params params;
  std::vector<uint8_t> isFrozen;
};
/// The parameters of each unit of a model.
std::vector<UnitParams> paramsOfUnits(std::span<const Unit> units, const Frozen &frozen);

/// Elements of all parameters, each tied weight once; INT64_MAX if there are more.
int64_t countParameters(const Decoder &decoder);

} // namespace shardc::model
