// Writes the format fsdp_dtensor, in which Megatron-FSDP saves.
#include <algorithm>

#include "runtime/plan/Optimizers.h"
#include "runtime/save/FormatWriter.h"

namespace shardc::save {
namespace {

class FsdpDtensorWriter final : public FormatWriter {
public:
  FsdpDtensorWriter(const plan::Plan &plan, const StateLayout &layout)
      : plan_(plan), layout_(layout), precision_(fsdpPrecisionOf(plan)) {}

  Status addObjects(const Progress &progress, checkpoint::RankWriter &writer) const override {
    for (const checkpoint::BytesItem &item : checkpoint::runStateItems(runStateOf(plan_, progress)))
      RETURN_IF_ERROR(writer.add(item));
    RETURN_IF_ERROR(addAmaxHistory(plan_, progress, writer));
    if (plan_.job.checkpoint.saveRng) {
      ASSIGN_OR_RETURN(checkpoint::RngItems rng,
                       checkpoint::rngItems(static_cast<uint32_t>(plan_.job.rng.seed),
                                            /*pipelineRank=*/0, /*tensorRank=*/0));
      for (const checkpoint::BytesItem &item : rng.objects)
        RETURN_IF_ERROR(writer.add(item));
      for (const checkpoint::TensorSlice &slice : rng.tensors)
        RETURN_IF_ERROR(writer.add(slice));
    }
    return plan_.job.checkpoint.saveOptim ? addSettings(progress, writer) : Status::ok();
  }

  Status addRows(const checkpoint::TensorSlice &rows, const StatePiece &piece,
                 checkpoint::RankWriter &writer) const override {
    return checkpoint::addParam(writer, rows, piece.part, layout_.isGated(piece.param), precision_);
  }

  Status addBuffer(const checkpoint::TensorSlice &buffer,
                   checkpoint::RankWriter &writer) const override {
    return checkpoint::addParam(writer, buffer, checkpoint::ParamPart::Weight, /*isGated=*/false,
                                precision_);
  }

private:
  Status addSettings(const Progress &progress, checkpoint::RankWriter &writer) const {
    bool isAdam = std::ranges::any_of(layout_.requests(), [](const auto &request) {
      return request.part == checkpoint::ParamPart::ExpAvgSq;
    });
    for (uint32_t p = 0; p < plan_.params.size(); ++p)
      for (int64_t i = 0;
           plan::isTrained(plan_, plan_.params[p]) && i < plan_.params[p].tensorCount(); ++i)
        RETURN_IF_ERROR(addSettings(p, plan_.params[p].tensorName(i), isAdam, progress, writer));
    return Status::ok();
  }

  /// Adds the settings of one tensor: those of its optimizer group, and for Adam the number of
  /// updates, once per tensor as PyTorch stores it.
  Status addSettings(uint32_t param, const std::string &name, bool isAdam, const Progress &progress,
                     checkpoint::RankWriter &writer) const {
    checkpoint::GroupMeta meta = groupMetaOf(plan_, param, progress);
    for (const checkpoint::BytesItem &item : checkpoint::groupMetaItems(name, meta, precision_))
      RETURN_IF_ERROR(writer.add(item));
    if (!isAdam)
      return Status::ok();
    auto step = static_cast<float>(meta.step);
    for (const checkpoint::TensorSlice &slice :
         checkpoint::adamStepSlices(name, layout_.isGated(param), step, precision_))
      RETURN_IF_ERROR(writer.add(slice));
    return Status::ok();
  }

  const plan::Plan &plan_;
  const StateLayout &layout_;
  checkpoint::FsdpPrecision precision_;
};

} // namespace

std::unique_ptr<FormatWriter> makeFsdpDtensorWriter(const plan::Plan &plan,
                                                    const StateLayout &layout) {
  return std::make_unique<FsdpDtensorWriter>(plan, layout);
}

} // namespace shardc::save
