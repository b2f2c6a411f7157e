#include "runtime/exec/SaveTorchDist.h"

#include <map>

#include "runtime/checkpoint/GroupOrder.h"

namespace shardc::exec {
namespace {

using checkpoint::ParamPart;
using checkpoint::ParamSlice;
using checkpoint::StoredPart;

Status writeAs(const ParamSlice &slice, StoredPart part, const checkpoint::TorchDistLayout &layout,
               checkpoint::RankWriter &writer) {
  ASSIGN_OR_RETURN(checkpoint::TensorSlice stored, checkpoint::torchDistSlice(slice, part, layout));
  return writer.add(stored);
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
  return checkpoint::torchDistLayout(forms);
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
  if (!plan.roles[0].cells[piece.cell].name.starts_with("master."))
    return writeAs(slice, StoredPart::Weight, layout, writer);
  if (plan.jobBool("checkpoint.save_optim", true))
    RETURN_IF_ERROR(writeAs(slice, StoredPart::Master, layout, writer));
  ParamSlice weight = slice;
  weight.dtype = checkpoint::elementOf(plan.params[piece.param].type.dtype);
  int64_t count = checkpoint::elementCount(slice.shape).value_or(0);
  std::vector<uint8_t> rounded(
      static_cast<size_t>(count * checkpoint::elementBits(weight.dtype) / 8));
  checkpoint::convertElements(slice.dtype, static_cast<const uint8_t *>(slice.data), weight.dtype,
                              rounded.data(), count);
  weight.data = rounded.data();
  return writeAs(weight, StoredPart::Weight, layout, writer);
}

checkpoint::BytesItem torchDistCommon(const plan::Plan &plan, const Progress &progress) {
  std::map<checkpoint::GroupKey, checkpoint::GroupMeta> groups;
  if (plan.jobBool("checkpoint.save_optim", true))
    for (const plan::Param &param : plan.params)
      groups.try_emplace(checkpoint::GroupKey(param.name, param.wdMult, param.lrMult),
                         groupMetaOf(plan, param, progress));
  std::vector<checkpoint::GroupMeta> ordered;
  for (const auto &[key, group] : groups)
    ordered.push_back(group);
  return checkpoint::commonStateItem(runStateOf(plan, progress), ordered);
}

} // namespace shardc::exec
