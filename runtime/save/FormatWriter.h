// How a format of checkpoints stores a run: one implementation for each format that runs write.
#pragma once

#include <memory>

#include "runtime/save/RunProgress.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Unavailable if the format of the plan's checkpoints is not written.
Status checkFormat(const plan::Plan &plan);

/// Writes the state of one plan. Threads and ranks may share it, each with a RankWriter of its own.
class FormatWriter {
public:
  /// A writer of the format that the plan's checkpoints have; Unavailable for one that is not
  /// written. The plan and the layout outlive it.
  static Result<std::unique_ptr<FormatWriter>> create(const plan::Plan &plan,
                                                      const StateLayout &layout);
  virtual ~FormatWriter() = default;

  /// Adds the objects that the first rank saves beside its tensors: the state of the run and of its
  /// random numbers, and the optimizer's settings if the optimizer is saved.
  virtual Status addObjects(const Progress &progress, checkpoint::RankWriter &writer) const = 0;
  /// Rows of a tensor or of a moment of it, which are in the cell of `piece`.
  virtual Status addRows(const checkpoint::TensorSlice &rows, const StatePiece &piece,
                         checkpoint::RankWriter &writer) const = 0;
  /// A tensor of the model that is no parameter.
  virtual Status addBuffer(const checkpoint::TensorSlice &buffer,
                           checkpoint::RankWriter &writer) const = 0;
  /// Adds files of this format other than those of the ranks.
  virtual Status addFiles(const Progress &, const checkpoint::SaveTarget &) const {
    return Status::ok();
  }
};

/// Adds the bias of the choice of experts, if there is one, to the rank's save.
Status addExpertBias(const plan::Plan &plan, const Progress &progress, const FormatWriter &format,
                     checkpoint::RankWriter &writer);

/// Megatron FSDP's `fsdp_dtensor`.
std::unique_ptr<FormatWriter> makeFsdpDtensorWriter(const plan::Plan &plan,
                                                    const StateLayout &layout);

/// Megatron's `torch_dist`, which runs under DDP or the distributed optimizer write, with the
/// optimizer's state as Megatron's own optimizers of that kind ask for it. Weights whose masters
/// are apart, and all under the distributed optimizer, are written twice: the masters in the
/// optimizer's state, and the model's own, rounded to its type.
std::unique_ptr<FormatWriter> makeTorchDistWriter(const plan::Plan &plan,
                                                  const StateLayout &layout);

/// A plain PyTorch DCP checkpoint, which runs under PyTorch's own FSDP2 write: names are those that
/// torch.distributed.checkpoint.state_dict gives a model (`model.<name>`) and its optimizer
/// (`optimizer.state.<name>.<moment>`); gated layers are not split.
std::unique_ptr<FormatWriter> makeTorchDcpWriter(const plan::Plan &plan, const StateLayout &layout);

} // namespace shardc::save
