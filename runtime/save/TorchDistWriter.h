// Writes Megatron's `torch_dist`; see makeTorchDistWriter().
#pragma once

#include "runtime/checkpoint/TorchDist.h"
#include "runtime/save/FormatWriter.h"

namespace shardc::save {

class TorchDistWriter final : public FormatWriter {
public:
  explicit TorchDistWriter(const plan::Plan &plan);

  Status addObjects(const Progress &progress, checkpoint::RankWriter &writer) const override;
  Status addRows(const checkpoint::TensorSlice &rows, const StatePiece &piece,
                 checkpoint::RankWriter &writer) const override;
  Status addBuffer(const checkpoint::TensorSlice &buffer,
                   checkpoint::RankWriter &writer) const override;
  Status addFiles(const Progress &progress, const checkpoint::SaveTarget &target) const override;

  /// How the plan's layers are stacked.
  const checkpoint::TorchDistLayout &layout() const { return layout_; }
  /// The common state; with the optimizer's groups if the optimizer is saved.
  checkpoint::TorchDistCommon common(const Progress &progress) const;

private:
  Status addAs(const checkpoint::TensorSlice &rows, checkpoint::Element type,
               checkpoint::StoredPart part, checkpoint::RankWriter &writer) const;

  const plan::Plan &plan_;
  checkpoint::TorchDistLayout layout_;
  bool savesOptimizer_;
};

} // namespace shardc::save
