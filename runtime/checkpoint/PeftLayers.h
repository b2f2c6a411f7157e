// Maps our layers with adapters to modules of a Hugging Face model, and reads a run's adapter
// settings.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/PeftAdapter.h"
#include "runtime/checkpoint/SavedParams.h"

namespace shardc::checkpoint {

/// A module of a Hugging Face model that one of our layers is, or has as a part.
struct PeftModule {
  std::string name;                ///< `model.layers.0.self_attn.q_proj`
  std::vector<HfSegment> segments; ///< with numbers of rows
  int64_t rows = 0;
  int slice = -1; ///< its rows of the first factor, counted in ranks; -1: it has no adapter
};

/// A layer with an adapter.
struct PeftLinear {
  std::string name, aName, bName;  ///< of the weight and of the factors
  std::string magnitudeName;       ///< of DoRA's magnitudes of rows
  Shape aShape, bShape;            ///< of an adapter that is there
  int64_t rows = 0;                ///< of the weight
  std::vector<PeftModule> modules; ///< in the order of their first rows
};

/// Those of a checkpoint.
Result<std::vector<PeftLinear>> peftLinears(const SavedParams &saved, const PeftSettings &settings,
                                            const HfConfig &config,
                                            const std::vector<HfParam> &params,
                                            const PeftPartsOf &partsOf);
/// Those of a model of whose modules some have adapters, each its own: `rowsIn` gives the rows of
/// the second factor, 0 without one.
std::vector<PeftLinear> peftLinears(const std::vector<HfParam> &params,
                                    const std::function<int64_t(const std::string &)> &rowsIn);

/// `model.layers.0.mlp.up_proj` of `model.layers.0.mlp.up_proj.weight`.
std::string moduleOf(const std::string &tensor);
/// `up_proj` of that.
std::string lastWordOf(const std::string &module);

/// The settings in `run_config.yaml`; CannotConvert if it has none.
Result<PeftSettings> readPeftSettings(const CheckpointReader &reader);
/// The text that readPeftSettings reads.
std::string peftSettingsText(const PeftSettings &settings);
/// The folder of the weights that adapters were trained for; empty if a checkpoint does not say.
std::string peftBaseOf(const CheckpointReader &reader);

} // namespace shardc::checkpoint
