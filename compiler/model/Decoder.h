// A decoder-only transformer as a list of units, each of which is a list of modules: the embedding,
// layers, the head. There are few kinds of layers; a pattern tells which kind each layer is.
#pragma once

#include <span>

#include "compiler/model/Freeze.h"
#include "compiler/model/Module.h"

namespace shardc::model {

/// Parameters that are gathered and reduced together.
struct Unit {
  plan::UnitKind kind;
  std::string name;        ///< name of the plan's unit, such as `layers.3`
  std::string paramPrefix; ///< such as `decoder.layers.3.`
  std::string valuePrefix; ///< such as `l3.`
  const Modules *modules;
};

/// The whole model. Unit numbers are those of the forward pass: embedding, layers, head,
/// multi-token prediction blocks.
struct Decoder {
  Modules embedding;
  std::vector<Modules> kinds; ///< the modules of each kind of layer
  /// Kind of each layer. Layers beyond the end have the last kind.
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

/// The parameters of a unit, with their complete names.
Params paramsOf(const Unit &unit);

/// The parameters of a unit, and for each one whether it is frozen.
struct UnitParams {
  Params params;
  std::vector<uint8_t> isFrozen;
};
/// The parameters of each unit of a model.
std::vector<UnitParams> paramsOfUnits(std::span<const Unit> units, const Frozen &frozen);

/// The number of elements of all parameters; a tied weight counts once. At most INT64_MAX.
int64_t countParameters(const Decoder &decoder);

} // namespace shardc::model
