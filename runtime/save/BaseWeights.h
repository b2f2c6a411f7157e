// The base weights of adapters (`peft.scheme`): those of `checkpoint.pretrained_checkpoint`, a
// checkpoint of any readable format or the folder of a Hugging Face model. A run opens them at each
// start. Its saves contain fingerprints of these weights instead of the weights.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/BaseRecord.h"
#include "runtime/checkpoint/NestedScales.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

class BaseWeights {
public:
  /// Opens the weights and compares them with the plan, which must outlive them. Null if the plan
  /// trains no adapters or `folder` is empty. CheckpointMismatch, with the tensors' names, if
  /// tensors are missing or have another shape.
  static Result<std::unique_ptr<BaseWeights>> open(const plan::Plan &plan, std::string folder,
                                                   ReportSink emit);

  const std::string &folder() const { return folder_; }
  /// The files of the Hugging Face model that exist.
  Result<std::vector<checkpoint::HfModelFile>> modelFiles() const {
    return checkpoint_->modelFiles();
  }
  /// Whether the base has a parameter. The expert bias counts as a parameter, too.
  bool has(std::string_view name) const { return shapeOf(name).has_value(); }
  const checkpoint::ParamSource &source() const { return *checkpoint_; }
  Status read(std::string_view name, const checkpoint::Box &box, checkpoint::Element type,
              void *dst) const;
  /// Reads in fp32, some rows at a time.
  Status readInPieces(std::string_view name, const checkpoint::Box &box,
                      const checkpoint::TakeNumbers &take) const;
  /// The scales in 8 bits of a weight: those of a folder that has such, otherwise computed.
  Result<NestedScales> nestedScales(const plan::Param &param) const;

  /// The largest absolute value of a weight, or of one tensor of a stack. Not for concurrent calls.
  Result<float> amax(const plan::Param &param, int64_t number) const;

  /// The content of checkpoint::kBaseFile: a fingerprint of each tensor that the run takes from the
  /// base.
  Result<std::string> record() const;
  /// Compares the base with the one with which the adapters were saved, given its record.
  /// CheckpointMismatch, with the tensors' names, if values differ.
  Status compare(const checkpoint::BaseRecord &record, const std::string &adapters) const;

private:
  explicit BaseWeights(const plan::Plan &plan) : plan_(plan) {}
  std::optional<checkpoint::Shape> shapeOf(std::string_view name) const;
  Status check() const;
  Result<std::string> fingerprint(const plan::Param &param, int64_t number) const;

  const plan::Plan &plan_;
  std::string folder_;
  std::unique_ptr<checkpoint::ParamSource> checkpoint_;
  mutable std::map<std::string, float> amaxes_; ///< by tensor
};

/// Whether the base has the parameter: true unless it is a factor of an adapter.
bool isInBase(const plan::Param &param);
/// Whether the run takes the parameter from the base at each start, since saves do not contain it.
bool isKeptInBase(const plan::Plan &plan, const plan::Param &param);

} // namespace shardc::save
