#include "runtime/exec/SaveTorchDist.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "runtime/checkpoint/GroupOrder.h"

namespace shardc::exec {
namespace {

using checkpoint::ParamPart;
using checkpoint::ParamSlice;
using checkpoint::StoredPart;

constexpr std::string_view kLayers = ".layers.";

Status writeAs(const ParamSlice &slice, StoredPart part, const checkpoint::TorchDistLayout &layout,
               checkpoint::RankWriter &writer) {
  ASSIGN_OR_RETURN(checkpoint::TensorSlice stored, checkpoint::torchDistSlice(slice, part, layout));
  return writer.add(stored);
}

/// A parameter's layer: the block before it and the rest of the name after it.
struct LayerName {
  std::string block, rest;
  int64_t layer = 0;
};

std::optional<LayerName> layerOf(const std::string &name) {
  size_t at = name.find(kLayers);
  if (at == std::string::npos)
    return std::nullopt;
  size_t begin = at + kLayers.size(), end = name.find('.', begin);
  LayerName found;
  if (end == std::string::npos ||
      std::from_chars(name.data() + begin, name.data() + end, found.layer).ptr != name.data() + end)
    return std::nullopt;
  found.block = name.substr(0, at);
  found.rest = name.substr(end);
  return found;
}

} // namespace

checkpoint::TorchDistLayout torchDistLayout(const plan::Plan &plan) {
  std::map<std::string, int64_t> layers;
  std::map<std::pair<std::string, std::string>, std::vector<plan::Type>> types;
  for (const plan::Param &param : plan.params)
    if (std::optional<LayerName> name = layerOf(param.name)) {
      layers[name->block] = std::max(layers[name->block], name->layer + 1);
      types[{name->block, name->rest}].push_back(param.type);
    }
  std::set<std::string> unlike;
  for (const auto &[key, all] : types)
    if (static_cast<int64_t>(all.size()) != layers[key.first] ||
        std::ranges::any_of(all, [&](const plan::Type &type) { return type != all[0]; }))
      unlike.insert(key.first);
  checkpoint::TorchDistLayout layout;
  for (const auto &[block, count] : layers)
    if (!unlike.contains(block))
      layout.layersOf[block] = count;
  return layout;
}

Status writeTorchDistSlice(const plan::Plan &plan, const ParamSlice &slice, const StatePiece &piece,
                           checkpoint::RankWriter &writer) {
  checkpoint::TorchDistLayout layout = torchDistLayout(plan);
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
