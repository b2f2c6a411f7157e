// A checkpoint as a list of readable tensors, independent of its format. Tensors are listed by
// their names in the files, or by parameter, so that checkpoints of different formats can be
// compared.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/ParamSource.h"

namespace shardc::checkpoint {

/// A tensor and a function that reads boxes of it, like CheckpointReader::read.
struct ViewTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::function<Status(const Box &box, Element type, void *dst)> read;
};

/// One checkpoint whose format the caller need not know.
class CheckpointView {
public:
  /// Opens a folder in any readable format. `emit`, if set, receives warnings, and the reason if
  /// optimizer state is left out because it cannot be divided into parameters.
  static Result<CheckpointView> open(const std::string &folder, Verify verify = Verify::Touched,
                                     const ReportSink &emit = nullptr);
  CheckpointFormat format() const { return format_; }
  /// The reader of the checkpoint's files, for objects and metadata.
  const CheckpointReader &reader() const { return params_ ? params_->reader() : *plain_; }
  /// Null unless the checkpoint has this format.
  const FsdpCheckpoint *fsdp() const { return params_ ? params_->fsdp() : nullptr; }
  const TorchDistCheckpoint *torchDist() const { return params_ ? params_->torchDist() : nullptr; }

  /// The tensors under their own names, sorted by name. They must not outlive the view.
  std::vector<ViewTensor> tensors() const;
  /// The parameters under plain names: `<name>`, `<name>.exp_avg`, `<name>.exp_avg_sq`. Uses master
  /// weights if there are any. Empty for a format without parameters.
  std::vector<ViewTensor> params() const;

private:
  CheckpointFormat format_ = CheckpointFormat::TorchDcp;
  std::optional<CheckpointReader> plain_; ///< of a format without parameters
  std::unique_ptr<ParamSource> params_;
};

} // namespace shardc::checkpoint
