// Saving and loading a training run's parameters in the `fsdp_dtensor` format, by Megatron-Core
// names: gated layers split and joined, optimizer group metadata per parameter, and the lists of
// what is missing, unexpected or of another shape before anything is loaded.
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

/// Adds the tensors that a slice of a parameter is saved as: one, or up to two of a gated layer.
/// The slice has Megatron-Core's name of the parameter (`decoder.layers.0.mlp.linear_fc1.weight`)
/// and the parameter's own shape: a gated layer's rows are the gate's, then the up projection's.
/// `isGated`: of a gated linear unit; only isGateable names are split. InvalidInput if a gated
/// tensor's rows are odd or the slice is not inside.
Status addParamSlices(const TensorSlice &param, ParamPart part, bool isGated,
                      std::vector<TensorSlice> &slices,
                      FsdpPrecision precision = FsdpPrecision::Half);

/// The optimizer settings of a parameter, as Megatron keeps them with each.
struct GroupMeta {
  bool isExpertParallel = false;
  bool isDecoupledLr = false;
  bool defaultConfig = true;
  bool biasCorrection = true;
  double weightDecayMult = 1, lrMult = 1;
  double maxLr = 0, minLr = 0, lr = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weightDecay = 0;
  int64_t step = 0;
  bool isOfRest = false; ///< as in GroupKey
  std::string optimizerOfRest = "adam"; ///< upstream's word for what updates it
  /// Of Muon, which has neither betas nor eps.
  std::optional<double> momentum;
};
/// Further settings of torch's own Adam, with the defaults of torch.optim.AdamW.
PlainEntries torchAdamSettings();
/// The items with a parameter's settings, one per field: those that the fused Adam of Transformer
/// Engine and Apex requires, and those of torch's own.
std::vector<BytesItem> groupMetaItems(std::string_view name, const GroupMeta &meta,
                                      FsdpPrecision precision = FsdpPrecision::Half);
/// The count of updates, which torch's own Adam requires next to the moments: one for each tensor
/// in which moments are saved. `step` must outlive the slices.
std::vector<TensorSlice> adamStepSlices(std::string_view name, bool isGated, const float &step,
                                        FsdpPrecision precision = FsdpPrecision::Half);

/// A parameter as a recipe wants it.
struct ParamRequest {
  std::string name;
  ParamPart part = ParamPart::Weight;
  Shape shape;
  bool isGated = false;
};

/// The differences between a checkpoint and a request; keys are the checkpoint's.
struct LoadDifferences {
  std::vector<std::string> missing, missingWeights, unexpected, mismatched;
  bool isComplete() const { return missing.empty() && mismatched.empty(); }
};

class FsdpCheckpoint {
public:
  /// Takes a reader whose keys are those of `fsdp_dtensor`. InvalidInput if two keys mean the same
  /// parameter, or layers carry stage-local numbers (`model0`, `model1`).
  static Result<FsdpCheckpoint> open(CheckpointReader reader);

  const CheckpointReader &reader() const { return reader_; }
  /// The shape of a parameter as the request sees it, with gated halves joined; none if absent.
  std::optional<Shape> shapeOf(std::string_view name, ParamPart part) const;
  /// The element type that it is saved in.
  std::optional<Element> typeOf(std::string_view name, ParamPart part) const;
  /// Names of all parameters in the checkpoint, in plain spelling, with gated ones joined.
  std::vector<std::string> names() const;

  /// Compares all requests with the checkpoint.
  LoadDifferences check(std::span<const ParamRequest> requests) const;
  /// Reads a box of a parameter. Rows beyond the saved ones are zeros if `padsRows` (for
  /// vocabularies padded to another multiple); otherwise they are an error.
  Status read(std::string_view name, ParamPart part, const Box &box, Element type, void *dst,
              bool padsRows = false) const;
  /// The settings of a parameter. NotFound if they, or one of `lr, step, betas, eps, weight_decay,
  /// wd_mult`, are missing; InvalidInput if they cannot be read.
  Result<GroupMeta> groupMeta(std::string_view name) const;
  /// One field of a parameter's settings; nothing if it is missing or not a plain value. If the
  /// settings have no `step`, it is the count of torch's own Adam.
  Result<std::optional<PlainValue>> setting(std::string_view name, const std::string &field) const;

private:
  explicit FsdpCheckpoint(CheckpointReader reader) : reader_(std::move(reader)) {}
  Status indexTensors();
  const TensorMeta *find(std::string_view name, ParamPart part) const;
  const GroupFields *settingsOf(std::string_view name) const;
  Result<std::optional<PlainValue>> adamStep(std::string_view name) const;

  CheckpointReader reader_;
  std::map<std::pair<std::string, ParamPart>, const TensorMeta *, std::less<>> tensors_;
  std::map<std::string, const TensorMeta *, std::less<>> adamSteps_;
  GroupSettings groupSettings_;
};

/// The error for an incomplete report, or ok. Strict: any missing or mis-shaped key. Otherwise only
/// mis-shaped ones and missing weights. Up to 20 keys are listed. `loader` is named in the message.
Status loadStatus(const LoadDifferences &report, bool isStrict, int rank, const std::string &folder,
                  std::string_view loader = "Megatron-FSDP");

} // namespace shardc::checkpoint
