// A checkpoint as a list of readable tensors, independent of its format: by the names in the files,
// or by parameter, so that checkpoints of different formats can be compared.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {

/// A tensor, with a function that reads boxes of it like CheckpointReader::read.
struct ViewTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::function<Status(const Box &box, Element type, void *dst)> read;
};

class CheckpointView {
public:
  /// Opens a folder of any format that is read. `emit`, if there is one, takes warnings, and why
  /// the optimizer's state is left out where it cannot be taken apart.
  static Result<CheckpointView> open(const std::string &folder, Verify verify = Verify::Touched,
                                     const ReportSink &emit = nullptr);
  CheckpointView(CheckpointView &&) noexcept;
  ~CheckpointView();

  CheckpointFormat format() const;
  const CheckpointReader &reader() const;
  /// Null unless the format is that.
  const FsdpCheckpoint *fsdp() const;
  const TorchDistCheckpoint *torchDist() const;

  /// The tensors under their own names, in order of names. They live as long as the view.
  std::vector<ViewTensor> tensors() const;
  /// Parameters by plain name, `<name>`, `<name>.exp_avg`, `<name>.exp_avg_sq`: the master weights
  /// where there are some. Empty for a format without parameters.
  std::vector<ViewTensor> params() const;

private:
  struct State;
  explicit CheckpointView(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace shardc::checkpoint
