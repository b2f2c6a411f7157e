// Saves and loads the parameters of a run in the `fsdp_dtensor` format, by Megatron-Core's names.
// Splits and joins gated layers, stores optimizer group metadata per parameter, and lists missing,
// unexpected and mismatched parameters before anything is loaded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/FsdpNames.h"
#include "runtime/checkpoint/GroupSettings.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// Adds the tensors as which a slice of a parameter is saved: one, or up to two for a gated layer.
/// The slice has the Megatron-Core name of the parameter (`decoder.layers.0.mlp.linear_fc1.weight`)
/// and the parameter's own shape. A gated layer has the rows of the gate, then those of the up
/// projection. `isGated` says whether the parameter belongs to a gated linear unit; only isGateable
/// names are split. InvalidInput if a gated tensor has an odd number of rows or the slice is not
/// inside the tensor.
Status addParamSlices(const TensorSlice &param, ParamPart part, bool isGated,
                      std::vector<TensorSlice> &slices,
                      FsdpPrecision precision = FsdpPrecision::Half);

/// Writes the tensors of addParamSlices().
Status addParam(RankWriter &writer, const TensorSlice &param, ParamPart part, bool isGated,
                FsdpPrecision precision = FsdpPrecision::Half);

/// The optimizer settings of a parameter. Megatron stores them per parameter.
struct GroupMeta {
  bool isExpertParallel = false;
  bool isDecoupledLr = false;
  bool defaultConfig = true;
  bool biasCorrection = true;
  double weightDecayMult = 1, lrMult = 1;
  double maxLr = 0, minLr = 0, lr = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weightDecay = 0;
  int64_t step = 0;
  bool isOfRest = false;                ///< see GroupKey
  std::string optimizerOfRest = "adam"; ///< upstream's name of the optimizer that updates it
  /// Only for Muon, which has neither betas nor eps.
  std::optional<double> momentum;
};
/// Additional settings of torch's own Adam, with the defaults of torch.optim.AdamW.
PlainEntries torchAdamSettings();
/// The items with a parameter's settings, one per field: those that the fused Adam of Transformer
/// Engine and Apex requires, and those of torch's own Adam.
std::vector<BytesItem> groupMetaItems(std::string_view name, const GroupMeta &meta,
                                      FsdpPrecision precision = FsdpPrecision::Half);
/// Slices with the update count, which torch's own Adam requires next to the moments: one for each
/// tensor as which moments are saved. `step` must outlive the slices.
std::vector<TensorSlice> adamStepSlices(std::string_view name, bool isGated, const float &step,
                                        FsdpPrecision precision = FsdpPrecision::Half);

/// A parameter that a recipe requests.
struct ParamRequest {
  std::string name;
  ParamPart part = ParamPart::Weight;
  Shape shape;
  bool isGated = false;
};

/// The differences between a checkpoint and the requests. Keys are those of the checkpoint.
struct LoadDifferences {
  std::vector<std::string> missing, missingWeights, unexpected, mismatched;
  bool isComplete() const { return missing.empty() && mismatched.empty(); }
};

/// The parameters and moments of an `fsdp_dtensor` checkpoint by plain names, whatever prefixes its
/// keys have.
class FsdpCheckpoint {
public:
  /// Takes over a reader of an `fsdp_dtensor` checkpoint. InvalidInput if two keys refer to the
  /// same parameter, or if layers have stage-local numbers (`model0`, `model1`).
  static Result<FsdpCheckpoint> open(CheckpointReader reader);

  const CheckpointReader &reader() const { return reader_; }
  /// The shape of a parameter as a request has it, with gated halves joined; nothing if it is
  /// missing.
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const;
  /// The element type in which it is saved.
  std::optional<Element> typeOf(std::string_view name, ParamPart part) const;
  /// Plain names of all parameters in the checkpoint; gated halves are joined.
  std::vector<std::string> names() const;

  /// Compares all requests with the checkpoint.
  LoadDifferences check(std::span<const ParamRequest> requests) const;
  /// Reads a box of a parameter. Rows beyond the saved ones are zero if `padsRows`, for
  /// vocabularies that are padded to another multiple; otherwise they are an error.
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows = false) const;
  /// The settings of a parameter. NotFound if all settings or one of `lr, step, betas, eps,
  /// weight_decay, wd_mult` are missing; InvalidInput if they cannot be read.
  Result<GroupMeta> groupMeta(std::string_view name) const;
  /// One field of a parameter's settings; nothing if it is missing or not a plain value. If the
  /// settings have no `step`, it is the update count of torch's own Adam.
  Result<std::optional<PlainValue>> setting(std::string_view name, const std::string &field) const;

private:
  explicit FsdpCheckpoint(CheckpointReader reader) : reader_(std::move(reader)) {}
  /// Finds the tensors that belong to parameters. Steps of Adam are scalars beside each parameter
  /// and are kept separately.
  Status indexTensors();
  const TensorMeta *find(std::string_view name, ParamPart part) const;
  const GroupFields *settingsOf(std::string_view name) const;
  /// The step may be stored under the parameter's own name, that of its first gated half, or its
  /// local name.
  Result<std::optional<PlainValue>> adamStep(std::string_view name) const;

  CheckpointReader reader_;
  std::map<std::pair<std::string, ParamPart>, const TensorMeta *, std::less<>> tensors_;
  std::map<std::string, const TensorMeta *, std::less<>> adamSteps_;
  GroupSettings groupSettings_;
};

/// The error for an incomplete report, or ok. If `isStrict`, any missing or mismatched key is an
/// error; otherwise only mismatched keys and missing weights are. Up to 20 keys are listed. The
/// message names `loader`.
Status loadStatus(const LoadDifferences &report, bool isStrict, int rank, const std::string &folder,
                  std::string_view loader = "Megatron-FSDP");

} // namespace shardc::checkpoint
