#include "compiler/model/Decoder.h"

#include <algorithm>

#include <fmt/format.h>

namespace shardc::model {
namespace {

int64_t elementsOf(const Modules &modules) {
  Params params;
  for (const auto &module : modules)
    module->declare(params);
  int64_t sum = 0;
  for (const ParamSpec &param : params) {
    int64_t elements = 1;
    for (int64_t extent : param.shape)
      elements = times(elements, extent);
    sum = plus(sum, elements);
  }
  return sum;
}

} // namespace

size_t Decoder::kindOf(int64_t layer) const {
  return pattern[std::min(static_cast<size_t>(layer), pattern.size() - 1)];
}

Unit Decoder::embeddingUnit() const {
  return {plan::UnitKind::Embedding, "embedding", "", "", &embedding};
}

Unit Decoder::layerUnit(int64_t index) const {
  return {plan::UnitKind::Layer, fmt::format("layers.{}", index),
          fmt::format("decoder.layers.{}.", index), fmt::format("l{}.", index),
          &kinds[kindOf(index)]};
}

Unit Decoder::headUnit() const { return {plan::UnitKind::Head, "head", "", "head.", &head}; }

Unit Decoder::predictionUnit(int64_t index) const {
  return {plan::UnitKind::Prediction, fmt::format("mtp.{}", index),
          fmt::format("mtp.layers.{}.", index), fmt::format("m{}.", index), &prediction};
}

std::vector<Unit> Decoder::units() const {
  std::vector<Unit> units = {embeddingUnit()};
  for (int64_t layer = 0; layer < numLayers; ++layer)
    units.push_back(layerUnit(layer));
  units.push_back(headUnit());
  for (int64_t block = 0; block < numPredictions; ++block)
    units.push_back(predictionUnit(block));
  return units;
}

std::vector<UnitParams> paramsOfUnits(std::span<const Unit> units, const Frozen &frozen) {
  std::vector<UnitParams> all;
  int64_t layer = -1;
  for (const Unit &unit : units) {
    layer += unit.kind == plan::UnitKind::Layer ? 1 : 0;
    UnitParams &own = all.emplace_back(UnitParams{paramsOf(unit), {}});
    for (const ParamSpec &param : own.params)
      own.isFrozen.push_back(frozen.has(param.kind, param.name, unit.kind, layer) ? 1 : 0);
  }
  return all;
}

Params paramsOf(const Unit &unit) {
  Params params;
  for (const auto &module : *unit.modules)
    module->declare(params);
  for (ParamSpec &param : params)
    param.name = unit.paramPrefix + param.name;
  return params;
}

int64_t countParameters(const Decoder &decoder) {
  std::vector<int64_t> layersOf(decoder.kinds.size(), 0);
  auto seen = static_cast<int64_t>(decoder.pattern.size());
  for (int64_t layer = 0; layer < std::min(seen, decoder.numLayers); ++layer)
    ++layersOf[decoder.kindOf(layer)];
  layersOf[decoder.kindOf(seen)] += std::max<int64_t>(decoder.numLayers - seen, 0);
  int64_t sum = plus(elementsOf(decoder.embedding), elementsOf(decoder.head));
  for (size_t kind = 0; kind < decoder.kinds.size(); ++kind)
    sum = plus(sum, times(layersOf[kind], elementsOf(decoder.kinds[kind])));
  return plus(sum, times(decoder.numPredictions, elementsOf(decoder.prediction)));
}

} // namespace shardc::model
