// How a run is stored in each checkpoint format that runs write; one implementation per format.
#pragma once

#include <memory>

#include "runtime/save/RunProgress.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Unavailable if runs do not write the format of the plan's checkpoints.
Status checkFormat(const plan::Plan &plan);

/// Writes the state of one plan. Several threads and ranks may share it, each with its own
/// RankWriter.
class FormatWriter {
public:
  /// Creates the writer for the format of the plan's checkpoints; Unavailable if runs do not write
  /// it. Plan and layout must outlive it.
  static Result<std::unique_ptr<FormatWriter>> create(const plan::Plan &plan,
                                                      const StateLayout &layout);
  virtual ~FormatWriter() = default;

  /// Adds the objects that the first rank saves in addition to its tensors: the state of the run
  /// and of its random number generators, and the optimizer's settings if the optimizer is saved.
  virtual Status addObjects(const Progress &progress, checkpoint::RankWriter &writer) const = 0;
  /// Adds rows of a tensor or of one of its moments, which are in the cell of `piece`.
  virtual Status addRows(const checkpoint::TensorSlice &rows, const StatePiece &piece,
                         checkpoint::RankWriter &writer) const = 0;
  /// Adds a tensor of the model that is not a parameter.
  virtual Status addBuffer(const checkpoint::TensorSlice &buffer,
                           checkpoint::RankWriter &writer) const = 0;
  /// Adds files of this format in addition to those of ranks.
  virtual Status addFiles(const Progress &, const checkpoint::SaveTarget &) const {
    return Status::ok();
  }
};

/// Adds the expert bias to the rank's save if the plan has one.
Status addExpertBias(const plan::Plan &plan, const Progress &progress, const FormatWriter &format,
                     checkpoint::RankWriter &writer);

/// Writes `fsdp_dtensor` of Megatron FSDP.
std::unique_ptr<FormatWriter> makeFsdpDtensorWriter(const plan::Plan &plan,
                                                    const StateLayout &layout);

/// Writes Megatron's `torch_dist`, for runs under DDP or the distributed optimizer. The optimizer
/// state has the form that the corresponding optimizer of Megatron expects. Weights with separate
/// masters, and all weights under the distributed optimizer, are written twice: as masters in the
/// optimizer state, and rounded to the model's type.
std::unique_ptr<FormatWriter> makeTorchDistWriter(const plan::Plan &plan,
                                                  const StateLayout &layout);

/// Writes a plain PyTorch DCP checkpoint, for runs under PyTorch's own FSDP2. Names are those of
/// torch.distributed.checkpoint.state_dict: `model.<name>` for the model and
/// `optimizer.state.<name>.<moment>` for its optimizer. Gated layers are not split.
std::unique_ptr<FormatWriter> makeTorchDcpWriter(const plan::Plan &plan, const StateLayout &layout);

} // namespace shardc::save
