#include "runtime/save/TorchDistWriter.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Optimizers.h"

namespace shardc::save {
namespace {

using checkpoint::ParamPart;
using checkpoint::StoredPart;
using checkpoint::TensorSlice;

bool isNarrow(const plan::Param &param) { return param.type.dtype != DType::F32; }

/// Whether masters are separate from the model's weights, in a run without the distributed
/// optimizer.
bool hasMasters(const plan::Plan &plan) {
  auto isMaster = [](const plan::Role &role) {
    return std::ranges::count(role.cells, plan::CellKind::Master, &plan::Cell::kind) != 0;
  };
  return std::ranges::any_of(plan.params, isNarrow) && std::ranges::any_of(plan.roles, isMaster);
}

/// Whether Megatron would use torch's own Adam. It does so without Transformer Engine and Apex,
/// which hosts without GPUs do not have.
bool isTorchAdam(const plan::Plan &plan) {
  using enum plan::Job::SavedAdam;
  plan::Job::SavedAdam adam = plan.job.checkpoint.torchDistAdam;
  return adam == Auto ? plan.needsBackend == "host" : adam == Torch;
}

checkpoint::TorchDistLayout layoutOf(const plan::Plan &plan) {
  std::vector<checkpoint::ParamForm> forms;
  for (const plan::Param &param : plan.params) {
    plan::Type type = param.tensorType();
    for (int64_t i = 0; i < param.tensorCount(); ++i)
      forms.push_back({param.tensorName(i),
                       {type.shape.begin(), type.shape.begin() + type.rank},
                       checkpoint::elementOf(type.dtype),
                       plan::isTrained(plan, param)});
  }
  checkpoint::TorchDistLayout layout =
      checkpoint::torchDistLayout(forms, plan.job.model.moeLayerFreq.size() > 1);
  // Megatron has no distributed optimizer for whole matrices.
  std::optional<plan::Optimizer> optimizer = plan::optimizerOf(plan.job);
  layout.isDistributed = plan.job.ddp.useDistributedOptimizer &&
                         !(optimizer && plan::needsMatrices(*optimizer));
  return layout;
}

} // namespace

TorchDistWriter::TorchDistWriter(const plan::Plan &plan)
    : plan_(plan), layout_(layoutOf(plan)), savesOptimizer_(plan.job.checkpoint.saveOptim) {}

Status TorchDistWriter::addObjects(const Progress &progress, checkpoint::RankWriter &writer) const {
  RETURN_IF_ERROR(addAmaxHistory(plan_, progress, writer));
  if (plan_.job.checkpoint.saveRng) {
    auto seed = static_cast<uint32_t>(plan_.job.rng.seed);
    ASSIGN_OR_RETURN(checkpoint::BytesItem rng, checkpoint::torchDistRngItem(seed));
    RETURN_IF_ERROR(writer.add(rng));
  }
  std::vector<std::string> names;
  for (const plan::Param &param : plan_.params)
    for (int64_t i = 0; i < param.tensorCount(); ++i)
      names.push_back(param.tensorName(i));
  ASSIGN_OR_RETURN(std::vector<checkpoint::BytesItem> states,
                   checkpoint::extraStateItems(names, layout_));
  for (const checkpoint::BytesItem &state : states)
    RETURN_IF_ERROR(writer.add(state));
  return writer.add(common(progress).item);
}

Status TorchDistWriter::addRows(const TensorSlice &rows, const StatePiece &piece,
                                checkpoint::RankWriter &writer) const {
  if (piece.part != ParamPart::Weight)
    return addAs(rows, rows.dtype, checkpoint::storedPartOf(piece.part), writer);
  bool isMaster = plan_.roles[piece.role].cells[piece.cell].kind == plan::CellKind::Master;
  // The distributed optimizer also stores masters of fp32 weights.
  const plan::Param &param = plan_.params[piece.param];
  bool isState = layout_.isDistributed ? isMaster || plan::isTrained(plan_, param)
                                       : isMaster && isNarrow(param);
  if (savesOptimizer_ && isState)
    RETURN_IF_ERROR(addAs(rows, checkpoint::Element::F32, StoredPart::Master, writer));
  checkpoint::Element type = checkpoint::elementOf(plan_.params[piece.param].type.dtype);
  return addAs(rows, isMaster ? type : rows.dtype, StoredPart::Weight, writer);
}

Status TorchDistWriter::addBuffer(const TensorSlice &buffer, checkpoint::RankWriter &writer) const {
  return addAs(buffer, buffer.dtype, StoredPart::Weight, writer);
}

/// Adds the rows, converted to this type.
Status TorchDistWriter::addAs(const TensorSlice &rows, checkpoint::Element type, StoredPart part,
                              checkpoint::RankWriter &writer) const {
  TensorSlice converted = rows;
  std::vector<uint8_t> bytes;
  if (rows.dtype != type) {
    int64_t count = checkpoint::elementCount(rows.box.shape).value_or(0);
    bytes.resize(static_cast<size_t>(count * checkpoint::elementBits(type) / 8));
    checkpoint::convertElements(rows.dtype, static_cast<const uint8_t *>(rows.data), type,
                                bytes.data(), count);
    converted.dtype = type;
    converted.data = bytes.data();
  }
  ASSIGN_OR_RETURN(TensorSlice stored, checkpoint::torchDistSlice(converted, part, layout_));
  return writer.add(stored);
}

Status TorchDistWriter::addFiles(const Progress &progress,
                                 const checkpoint::SaveTarget &target) const {
  RETURN_IF_ERROR(checkpoint::addFile(target, checkpoint::kCommonFile, common(progress).file));
  return checkpoint::addFile(target, "metadata.json", checkpoint::torchDistMetadataFile());
}

/// The contents of common.pt: the state of the run and one entry per optimizer group. Counts of
/// updates are stored per tensor only if they differ, as after new parameters were added.
checkpoint::TorchDistCommon TorchDistWriter::common(const Progress &progress) const {
  std::map<checkpoint::GroupKey, checkpoint::GroupMeta> groups;
  checkpoint::PlainEntries updates;
  if (savesOptimizer_)
    for (size_t p = 0; p < plan_.params.size(); ++p) {
      const plan::Param &param = plan_.params[p];
      if (!plan::isTrained(plan_, param))
        continue;
      groups.try_emplace(groupKeyOf(plan_, param), groupMetaOf(plan_, p, progress));
      for (int64_t i = 0; i < param.tensorCount(); ++i)
        updates.emplace_back(param.tensorName(i), progress.updatesOf(p));
    }
  bool countsAlike = std::ranges::all_of(progress.countOffsets, [&](int64_t offset) {
    return offset == progress.countOffsets.front();
  });
  checkpoint::TorchDistOptimizer optimizer;
  if (!countsAlike)
    optimizer.updates = std::move(updates);
  optimizer.isDistributed = layout_.isDistributed;
  optimizer.hasMasters = hasMasters(plan_);
  optimizer.countsWithMoments = isTorchAdam(plan_);
  for (const auto &[key, group] : groups)
    optimizer.groups.push_back(group);
  return checkpoint::torchDistCommon(runStateOf(plan_, progress), optimizer);
}

std::unique_ptr<FormatWriter> makeTorchDistWriter(const plan::Plan &plan, const StateLayout &) {
  return std::make_unique<TorchDistWriter>(plan);
}

} // namespace shardc::save
