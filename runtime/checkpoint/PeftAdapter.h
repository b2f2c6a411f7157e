// Adapters in the form of Hugging Face's PEFT: a folder with `adapter_config.json` and
// `adapter_model.safetensors`. They name the layers of a Hugging Face model, of which ours join
// some: queries, keys and values, gate and up.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/HfConvert.h"

namespace shardc::checkpoint {

/// A run's settings of its adapters (`peft` in `run_config.yaml`).
struct PeftSettings {
  std::string scheme;
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool isRslora = false;
  std::vector<std::string> targets, exclude, modulesToSave;

  double scale() const;
  bool isDora() const { return scheme == "dora"; }
};

/// Which parts of a joined layer have adapters: bits in the order of their rows, or one for all.
struct PeftParts {
  bool isJoint = true;
  uint64_t kept = 0;
};
/// Of the layer `stem`, such as `mlp.linear_fc1`, of a decoder layer.
using PeftPartsOf = std::function<PeftParts(const PeftSettings &settings, const HfConfig &config,
                                            const std::string &stem, int64_t layer)>;

struct PeftOptions {
  std::string configFolder;          ///< with the model's config.json; else it is what `in` keeps
  PeftPartsOf partsOf;               ///< for export and merge
  Element weightType = Element::F32; ///< of exported factors
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = {};
};

/// Writes the adapters of the checkpoint `in` as a PEFT folder.
Status exportPeft(const std::string &in, const std::string &out, const PeftOptions &options);

/// Writes the adapters of the PEFT folder `in` as a checkpoint; `configFolder` is required. If
/// ranks and scales differ between layers, they become one rank, padded with zeros, and one scale.
/// `settings` receives the settings that a recipe needs to continue with them.
Status importPeft(const std::string &in, const SaveTarget &out, const PeftOptions &options,
                  PeftSettings &settings);

struct MergeOptions {
  PeftOptions peft;
  /// Of the merged weights; none: as the base has them.
  std::optional<Element> weightType = {};
  int threads = 1;
};
/// Adds the adapters of the checkpoint `adapters` to the weights of `base`, a checkpoint or a
/// Hugging Face model: in fp32, rounded once.
Status mergePeft(const std::string &adapters, const std::string &base, const SaveTarget &out,
                 const MergeOptions &options, const ConvertRank &rank = {});

} // namespace shardc::checkpoint
