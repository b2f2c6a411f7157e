#include "runtime/save/TorchDistWriter.h"

#include <algorithm>
#include <map>

#include "runtime/checkpoint/GroupOrder.h"

namespace shardc::save {
namespace {

using checkpoint::ParamPart;
using checkpoint::ParamSlice;
using checkpoint::StoredPart;

Status writeAs(const ParamSlice &slice, StoredPart part, const checkpoint::TorchDistLayout &layout,
               checkpoint::RankWriter &writer) {
  ASSIGN_OR_RETURN(checkpoint::TensorSlice stored, checkpoint::torchDistSlice(slice, part, layout));
  return writer.add(stored);
}

bool isDistributed(const plan::Plan &plan) { return plan.job.ddp.useDistributedOptimizer; }

bool savesOptimizer(const plan::Plan &plan) { return plan.job.checkpoint.saveOptim; }

bool hasMasters(const plan::Plan &plan) {
  return std::ranges::find(plan.roles[0].cells, plan::CellKind::Master, &plan::Cell::kind) !=
         plan.roles[0].cells.end();
}

/// Without Transformer Engine and Apex, which GPUs have and the host has not, Megatron takes
/// torch's own Adam.
bool isTorchAdam(const plan::Plan &plan) {
  using enum plan::Job::SavedAdam;
  plan::Job::SavedAdam adam = plan.job.checkpoint.torchDistAdam;
  return adam == Auto ? plan.needsBackend == "host" : adam == Torch;
}

/// The slice in another type.
Status writeConverted(const ParamSlice &slice, checkpoint::Element type, StoredPart part,
                      const checkpoint::TorchDistLayout &layout, checkpoint::RankWriter &writer) {
  if (slice.dtype == type)
    return writeAs(slice, part, layout, writer);
  ParamSlice converted = slice;
  converted.dtype = type;
  int64_t count = checkpoint::elementCount(slice.shape).value_or(0);
  std::vector<uint8_t> bytes(static_cast<size_t>(count * checkpoint::elementBits(type) / 8));
  checkpoint::convertElements(slice.dtype, static_cast<const uint8_t *>(slice.data), type,
                              bytes.data(), count);
  converted.data = bytes.data();
  return writeAs(converted, part, layout, writer);
}

} // namespace

checkpoint::TorchDistLayout torchDistLayout(const plan::Plan &plan) {
  std::vector<checkpoint::ParamForm> forms;
  for (const plan::Param &param : plan.params) {
    const plan::Type &type = param.type;
    forms.push_back({param.name,
                     {type.shape.begin(), type.shape.begin() + type.rank},
                     checkpoint::elementOf(type.dtype)});
  }
  checkpoint::TorchDistLayout layout = checkpoint::torchDistLayout(forms);
  layout.isDistributed = isDistributed(plan);
  return layout;
}

Status writeTorchDistSlice(const plan::Plan &plan, const checkpoint::TorchDistLayout &layout,
                           const ParamSlice &slice, const StatePiece &piece,
                           checkpoint::RankWriter &writer) {
  if (piece.part != ParamPart::Weight)
    return writeAs(slice,
                   piece.part == ParamPart::ExpAvg     ? StoredPart::ExpAvg
                   : piece.part == ParamPart::ExpAvgSq ? StoredPart::ExpAvgSq
                                                       : StoredPart::Momentum,
                   layout, writer);
  bool isMaster = plan.roles[0].cells[piece.cell].kind == plan::CellKind::Master;
  // The distributed optimizer keeps masters of fp32 weights too.
  if (savesOptimizer(plan) && (isMaster || layout.isDistributed))
    RETURN_IF_ERROR(
        writeConverted(slice, checkpoint::Element::F32, StoredPart::Master, layout, writer));
  checkpoint::Element type = checkpoint::elementOf(plan.params[piece.param].type.dtype);
  return writeConverted(slice, isMaster ? type : slice.dtype, StoredPart::Weight, layout, writer);
}

checkpoint::TorchDistCommon torchDistCommon(const plan::Plan &plan, const Progress &progress) {
  std::map<checkpoint::GroupKey, checkpoint::GroupMeta> groups;
  checkpoint::PlainEntries updates;
  if (savesOptimizer(plan))
    for (size_t p = 0; p < plan.params.size(); ++p) {
      const plan::Param &param = plan.params[p];
      groups.try_emplace(checkpoint::GroupKey(param.name, param.wdMult, param.lrMult),
                         groupMetaOf(plan, p, progress));
      updates.emplace_back(param.name, progress.updatesOf(p));
    }
  bool countsAlike = std::ranges::all_of(progress.countOffsets, [&](int64_t offset) {
    return offset == progress.countOffsets.front();
  });
  checkpoint::TorchDistOptimizer optimizer;
  if (!countsAlike)
    optimizer.updates = std::move(updates);
  optimizer.isDistributed = isDistributed(plan);
  optimizer.hasMasters = hasMasters(plan);
  optimizer.countsWithMoments = isTorchAdam(plan);
  for (const auto &[key, group] : groups)
    optimizer.groups.push_back(group);
  return checkpoint::torchDistCommon(runStateOf(plan, progress), optimizer);
}

Status writeTorchDistObjects(const plan::Plan &plan, const checkpoint::TorchDistLayout &layout,
                             const Progress &progress, checkpoint::RankWriter &writer) {
  std::vector<std::string> names;
  for (const plan::Param &param : plan.params)
    names.push_back(param.name);
  ASSIGN_OR_RETURN(std::vector<checkpoint::BytesItem> states,
                   checkpoint::extraStateItems(names, layout));
  for (const checkpoint::BytesItem &state : states)
    RETURN_IF_ERROR(writer.add(state));
  return writer.add(torchDistCommon(plan, progress).item);
}

Status addTorchDistFiles(const plan::Plan &plan, const Progress &progress,
                         const checkpoint::SaveTarget &target) {
  RETURN_IF_ERROR(
      checkpoint::addFile(target, checkpoint::kCommonFile, torchDistCommon(plan, progress).file));
  return checkpoint::addFile(target, "metadata.json", checkpoint::torchDistMetadataFile());
}

} // namespace shardc::save
