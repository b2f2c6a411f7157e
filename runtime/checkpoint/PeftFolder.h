// A folder of PEFT's adapters: `adapter_config.json` and `adapter_model.safetensors`.
#pragma once

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/Json.h"
#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/PeftLayers.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {

inline constexpr const char *kPeftConfigFile = "adapter_config.json",
                            *kPeftTensors = "adapter_model.safetensors",
                            *kPeftPrefix = "base_model.model.",
                            *kPeftMagnitude = ".lora_magnitude_vector",
                            *kPeftTokens = ".token_adapter.trainable_tokens_delta";

/// Both factors of a module, and what belongs to them: A [rank, columns], B [rows, rank].
struct PeftFactors {
  int64_t rank = 0, rows = 0, columns = 0;
  double scale = 1;
  std::vector<float> a, b;
  std::vector<float> bias;       ///< of B, by row; empty without `lora_bias`
  std::vector<float> magnitudes; ///< of rows; empty without DoRA
};

class PeftFolder {
public:
  /// CannotConvert if a field has another type than PEFT's, or changes what adapters compute in a
  /// way that has no counterpart. `emit` gets a warning of fields that PEFT does not read.
  static Result<PeftFolder> open(const std::string &path, const HfConfig &model,
                                 const ReportSink &emit);

  bool isRslora() const { return isOn("use_rslora"); }
  bool isDora() const { return isOn("use_dora"); }
  bool hasBiases() const { return isOn("lora_bias"); }
  /// Whether a tied model stays tied if one of its two matrices is trained.
  bool ensuresTying() const { return isOn("ensure_weight_tying"); }
  double dropout() const { return config_.value("lora_dropout", 0.0); }
  /// Rows of factor B of a module; 0 if it has no adapter. Sets the module's rank and alpha.
  int64_t lookUp(PeftModule &module) const;
  /// The factors of a module that has an adapter; marks their tensors as used.
  Result<PeftFactors> factorsOf(const PeftModule &module);
  /// A tensor under the name that a text model gives it, without PEFT's prefix, marked as used.
  /// Null if there is none.
  const SafeTensor *take(const std::string &name);
  bool has(const std::string &name) const { return find(name) != nullptr; }
  /// All numbers of a tensor. CannotConvert for types other than floats, and for numbers that are
  /// not finite.
  Result<std::vector<float>> numbersOf(const SafeTensor &tensor) const;
  /// Whether `modules_to_save` names the module.
  bool saves(const std::string &module) const;
  /// The model that the folder's adapters are for, as it calls it; empty if it does not.
  std::string base() const;
  /// The tokens whose rows of a table are trained, from `trainable_token_indices`.
  std::vector<int64_t> tokensOf(const std::string &module) const;
  /// CannotConvert if tensors are left.
  Status finish() const;

private:
  /// The factors' tensors, and the module's path in the model of PEFT.
  struct Found {
    const SafeTensor *a = nullptr, *b = nullptr;
    std::string path;
    bool isSwapped = false; ///< PEFT takes rows of the stored parameter for its columns
  };

  PeftFolder(std::string path, const HfConfig &model, SafeTensorsFile tensors)
      : path_(std::move(path)), model_(model), tensors_(std::move(tensors)) {}

  bool isOn(const char *field) const { return config_.value(field, false); }
  Status readConfig(const std::string &text);
  Status check(const ReportSink &emit) const;
  const SafeTensor *find(const std::string &name) const;
  Found foundOf(const PeftModule &module) const;
  double alphaOf(const Found &found) const;
  /// Sets both factors to those of one expert.
  Status takeExpert(const PeftModule &module, const Found &found, PeftFactors &factors);
  Status checkModule(const PeftModule &module, const Found &found) const;
  /// The value of the first key in the file's order that matches the path as PEFT matches it.
  double patternOr(const char *field, const std::string &path, double otherwise) const;
  bool names(const char *field, const std::string &path) const;
  bool namesLayer(const std::string &path) const;

  std::string path_;
  const HfConfig &model_;
  SafeTensorsFile tensors_;
  nlohmann::json config_;
  std::map<std::string, const SafeTensor *, std::less<>> plain_; ///< by name in a text model
  /// Keys of `rank_pattern` and `alpha_pattern` in the file's order, and other expressions.
  std::map<std::string, std::vector<std::string>> keysOf_;
  std::map<std::string, std::regex> expressions_;
  std::set<std::string> taken_;
  /// Numbers of the stacks of experts that were read last.
  std::map<const SafeTensor *, std::vector<float>> stacks_;
};

/// The name in transformers 5's model of a tensor or a module of a file.
std::string moduleName(const HfConfig &config, const std::string &name);
/// The name there of a module's stack of experts.
std::string stackName(const HfConfig &config, const PeftModule &module);
/// The name under which PEFT's model has a tensor or a module of a text model, without PEFT's
/// prefix.
std::string peftPath(const HfConfig &config, const std::string &name);

} // namespace shardc::checkpoint
