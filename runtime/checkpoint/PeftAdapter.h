// Adapters in the format of Hugging Face's PEFT: a folder with `adapter_config.json` and
// `adapter_model.safetensors`. The adapters refer to modules of a Hugging Face model. Our layers
// join some of these modules: queries, keys and values, and gate and up.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/HfConvert.h"

namespace shardc::checkpoint {

/// A run's settings of its adapters (`peft` in `run_config.yaml`).
struct PeftSettings {
  std::string scheme;
  std::string base; ///< what an imported folder calls the model that they are for
  int64_t rank = 0;
  double alpha = 0, dropout = 0;
  bool isRslora = false, hasBiases = false;
  bool isUntied = false; ///< the model has an output layer of its own, whatever the base says
  std::vector<std::string> targets, exclude, modulesToSave;
  std::vector<double> targetAlphas; ///< of each target; empty: `alpha` is that of all

  double scaleOf(double ofAlpha) const;
  bool isDora() const { return scheme == "dora"; }
};

/// Which parts of a joined layer have separate adapters: one bit per part, in the order of their
/// rows. If `isJoint`, one adapter covers all parts.
struct PeftParts {
  bool isJoint = true;
  uint64_t kept = 0;
  std::vector<double> alphas = {}; ///< by part, the joint one first; empty: that of the settings
};
/// Returns the parts of layer `stem`, such as `mlp.linear_fc1`, in decoder layer `layer`.
using PeftPartsOf = std::function<PeftParts(const PeftSettings &settings, const HfConfig &config,
                                            const std::string &stem, int64_t layer)>;

struct PeftLinear;
/// Sets `targets`, `targetAlphas` and `modulesToSave` to what a recipe calls these layers and
/// parameters.
using PeftNames =
    std::function<void(const HfConfig &config, const std::vector<HfParam> &params,
                       const std::vector<PeftLinear> &linears,
                       const std::vector<std::string> &saved, PeftSettings &settings)>;

struct PeftOptions {
  std::string configFolder;          ///< folder of config.json; empty: uses that of `in`
  PeftPartsOf partsOf;               ///< for export and merge
  PeftNames names = {};              ///< for import
  Element weightType = Element::F32; ///< type of exported factors
  ConvertProgress progress = {};
  Observers observers = {};
  ReportSink emit = [](const Report &) {};
};

/// Writes the adapters of the checkpoint `in` as a PEFT folder.
Status exportPeft(const std::string &in, const std::string &out, const PeftOptions &options);

/// Writes the adapters of the PEFT folder `in` as a checkpoint; `configFolder` is required. If
/// ranks differ between layers, zeros fill both factors up to one rank: their gradients are zero.
/// If scales of the experts of a layer differ, second factors are multiplied. If PEFT trains one
/// matrix of a tied model, and does not keep the model tied, the model has two matrices, and the
/// other one stays the base's. Rows of tokens that are not trained are read from `configFolder`.
/// `settings` receives what a recipe needs to continue training.
Status importPeft(const std::string &in, const SaveTarget &out, const PeftOptions &options,
                  PeftSettings &settings);

struct MergeOptions {
  PeftOptions peft;
  /// The type of the merged weights; not set: that of the base.
  std::optional<Element> weightType = {};
  int threads = 1;
};
/// Adds the adapters of the checkpoint `adapters` to the weights of `base`, which is a checkpoint
/// or a Hugging Face model. Computes in fp32 and rounds once.
Status mergePeft(const std::string &adapters, const std::string &base, const SaveTarget &out,
                 const MergeOptions &options, const ConvertRank &rank = {});

} // namespace shardc::checkpoint
