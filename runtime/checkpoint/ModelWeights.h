// The weights of a model by plain names, from a checkpoint or from the folder of a Hugging Face
// model, for code that only reads weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/HfFiles.h"
#include "runtime/checkpoint/NestedScales.h"
#include "runtime/checkpoint/SavedParams.h"

namespace shardc::checkpoint {

/// One opened model. Names, shapes and boxes are those of SavedParams or HfWeights, whichever the
/// folder has.
class ModelWeights {
public:
  /// Opens a Hugging Face model if the folder has a `config.json` and is not a checkpoint;
  /// otherwise the checkpoint in it.
  static Result<ModelWeights> open(const std::string &folder, const ReportSink &emit);

  const std::string &folder() const { return folder_; }
  /// Of the checkpoint; null for a Hugging Face model.
  const CheckpointReader *reader() const { return model_ ? nullptr : &saved_->reader(); }
  /// Names of all parameters, as in Megatron-Core.
  std::vector<std::string> names() const { return model_ ? model_->names() : saved_->names(); }
  /// The unsharded shape; nothing if the model lacks the parameter.
  std::optional<Shape> shapeOf(const std::string &name) const {
    return model_ ? model_->shapeOf(name) : saved_->shapeOf(name);
  }
  /// The type in which the weight is stored; of a Hugging Face model, that of its config.json.
  std::optional<Element> typeOf(const std::string &name) const {
    return model_ ? model_->weightType() : saved_->typeOf(name);
  }
  /// Reads a box into the dense array `dst`, with conversion to `type`.
  Status read(const std::string &name, const Box &box, Element type, void *dst) const {
    return model_ ? model_->read(name, box, type, dst) : saved_->read(name, box, type, dst);
  }
  /// The scales in 8 bits of a weight: those of a folder that has such, otherwise computed.
  Result<NestedScales> nestedScales(const plan::Plan &plan, const plan::Param &param) const;
  /// The files of the Hugging Face model that exist.
  Result<std::vector<HfModelFile>> modelFiles() const {
    return model_ ? hfFilesIn(folder_) : hfFilesOf(saved_->reader());
  }

private:
  std::string folder_;
  std::unique_ptr<HfWeights> model_;
  std::optional<SavedParams> saved_;
};

} // namespace shardc::checkpoint
