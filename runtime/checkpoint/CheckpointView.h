// A checkpoint as a list of readable tensors, independent of its format. Tensors are listed by
// their names in the files, or by parameter, so that checkpoints of different formats can be
// compared.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/TorchDist.h"

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
  CheckpointView(CheckpointView &&) noexcept;
  ~CheckpointView();

  CheckpointFormat format() const;
  /// The reader of the checkpoint's files, for objects and metadata.
  const CheckpointReader &reader() const;
  /// Null unless the checkpoint has this format.
  const FsdpCheckpoint *fsdp() const;
  const TorchDistCheckpoint *torchDist() const;

  /// The tensors under their own names, sorted by name. They must not outlive the view.
  std::vector<ViewTensor> tensors() const;
  /// The parameters under plain names: `<name>`, `<name>.exp_avg`, `<name>.exp_avg_sq`. Uses master
  /// weights if there are any. Empty for a format without parameters.
  std::vector<ViewTensor> params() const;

private:
  struct State;
  explicit CheckpointView(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace shardc::checkpoint
