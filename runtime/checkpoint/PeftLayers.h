// Maps our layers with adapters to modules of a Hugging Face model, and reads a run's adapter
// settings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/ParamSource.h"
#include "runtime/checkpoint/PeftAdapter.h"

namespace shardc::checkpoint {

/// A module of a Hugging Face model that equals one of our layers or is a part of it.
struct PeftModule {
  std::string name;                ///< such as `model.layers.0.self_attn.q_proj`
  std::vector<HfSegment> segments; ///< with explicit numbers of rows
  int64_t rows = 0;
  int slice = -1;   ///< index of its slice of factor A, in units of the rank; -1: it has no adapter
  int64_t rank = 0; ///< of its adapter in a folder of PEFT
  double alpha = 0; ///< of its adapter; in a checkpoint for the rank of the settings
  /// Of a parameter with the matrices of all experts: the expert's index. Its name ends with the
  /// parameter's.
  int64_t slab = -1;
  int64_t columns = 0; ///< of such a matrix
};

/// One of our layers with an adapter.
struct PeftLinear {
  std::string name, aName, bName;  ///< of the weight and of the factors
  std::string magnitudeName;       ///< of DoRA's magnitudes of rows
  std::string biasName;            ///< of the second factor, which only PEFT trains
  std::string ownBiasName;         ///< of the layer, beside its weight
  int64_t layer = -1;              ///< number of the decoder layer; -1: it is in none
  std::string stem;                ///< name in the decoder layer, without `.weight`
  Shape aShape, bShape;            ///< shapes of the two factors
  int64_t rows = 0;                ///< of the weight
  std::vector<PeftModule> modules; ///< in the order of their first rows
  /// Experts have one adapter for all modules of a layer.
  bool isOfExperts() const { return name.find(".mlp.experts.") != name.npos; }
};

/// The layers with adapters in a checkpoint.
Result<std::vector<PeftLinear>> peftLinears(const ParamSource &saved, const PeftSettings &settings,
                                            const HfConfig &config,
                                            const std::vector<HfParam> &params,
                                            const PeftPartsOf &partsOf);
/// The layers of a model in which some modules have adapters, each a separate one. `rowsIn` returns
/// the rows of a module's factor B, or 0 if it has no adapter.
std::vector<PeftLinear> peftLinears(const HfConfig &config, const std::vector<HfParam> &params,
                                    const std::function<int64_t(PeftModule &)> &rowsIn);

/// The module of a tensor: `model.layers.0.mlp.up_proj` for `model.layers.0.mlp.up_proj.weight`.
std::string moduleOf(const std::string &tensor);
/// The last segment of a module's name, such as `up_proj`.
std::string lastWordOf(const std::string &module);

/// The config.json in a folder, or without a folder the one in the checkpoint.
Result<HfConfig> configOf(const CheckpointReader *reader, const std::string &folder);
/// All numbers of a weight; CannotConvert if some are not finite.
Result<std::vector<float>> readAll(const ParamSource &from, const std::string &name,
                                   const Shape &shape);

/// The adapter settings in `run_config.yaml`; CannotConvert if there are none.
Result<PeftSettings> readPeftSettings(const CheckpointReader &reader);
/// The settings as text in the form that readPeftSettings reads.
std::string peftSettingsText(const PeftSettings &settings);
/// The folder of the base weights on which adapters were trained; empty if the checkpoint does not
/// name it.
std::string peftBaseOf(const CheckpointReader &reader);

} // namespace shardc::checkpoint
