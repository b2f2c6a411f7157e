#include <algorithm>
#include <charconv>
#include <map>

#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/GroupOrder.h"

namespace shardc::checkpoint {
namespace {

/// `decoder.layers.3.x` in its parts; none for names without a layer.
struct LayerName {
  std::string block, rest;
  int64_t layer = 0;
};

std::optional<LayerName> layerNameOf(const std::string &name) {
  constexpr std::string_view kLayers = ".layers.";
  size_t at = name.find(kLayers);
  if (at == std::string::npos)
    return std::nullopt;
  size_t begin = at + kLayers.size(), end = name.find('.', begin);
  LayerName parts{name.substr(0, at), end != std::string::npos ? name.substr(end + 1) : "", 0};
  auto [stop, error] =
      std::from_chars(name.data() + begin, name.data() + std::min(end, name.size()), parts.layer);
  bool isNumber = error == std::errc() && end != std::string::npos && stop == name.data() + end;
  return isNumber ? std::optional(parts) : std::nullopt;
}

/// A block is stacked if all its layers have the same parameters of the same shapes and are
/// numbered without a gap.
TorchDistLayout layoutOf(const FsdpCheckpoint &source, const std::vector<std::string> &names) {
  std::map<std::string, std::map<int64_t, std::map<std::string, Shape>>> blocks;
  TorchDistLayout layout;
  for (const std::string &name : names) {
    if (std::optional<LayerName> parts = layerNameOf(name))
      blocks[parts->block][parts->layer][parts->rest] = *source.shapeOf(name, ParamPart::Weight);
    size_t experts = name.find(".mlp.experts.");
    size_t digits = name.find_last_not_of("0123456789") + 1;
    if (experts != std::string::npos && digits < name.size())
      layout.experts = std::max<int64_t>(layout.experts, std::atoll(name.c_str() + digits) + 1);
  }
  for (const auto &[block, layers] : blocks) {
    bool isAlike = layers.rbegin()->first + 1 == static_cast<int64_t>(layers.size()) &&
                   !block.starts_with("mtp");
    for (const auto &[number, params] : layers)
      isAlike = isAlike && params == layers.begin()->second;
    if (isAlike)
      layout.layersOf[block] = static_cast<int64_t>(layers.size());
  }
  return layout;
}

std::optional<ParamPart> sourceOf(StoredPart part) {
  switch (part) {
  case StoredPart::Weight:
  case StoredPart::Master:
    return ParamPart::Weight;
  case StoredPart::ExpAvg:
    return ParamPart::ExpAvg;
  case StoredPart::ExpAvgSq:
    return ParamPart::ExpAvgSq;
  case StoredPart::Momentum:
    return ParamPart::Momentum;
  }
  return std::nullopt;
}

Result<std::vector<ConvertJob>> jobsOf(const FsdpCheckpoint &source,
                                       const ConvertBackOptions &options) {
  std::vector<std::string> names = source.names();
  for (const std::string &name : names)
    if (!source.shapeOf(name, ParamPart::Weight))
      return makeStatus(StatusCode::InvalidInput,
                        "'{}_w' and '{}_v' are no two halves of one shape in '{}'", name, name,
                        source.reader().folder());
  TorchDistLayout layout = layoutOf(source, names);
  std::vector<ConvertJob> jobs;
  for (const std::string &name : names) {
    bool hasState = !options.weightsOnly && (source.shapeOf(name, ParamPart::ExpAvg) ||
                                             source.shapeOf(name, ParamPart::Momentum));
    for (StoredPart part : kStoredParts) {
      ParamPart from = *sourceOf(part);
      if ((part != StoredPart::Weight && !hasState) || !source.shapeOf(name, from))
        continue;
      std::optional<Element> saved = source.typeOf(name, from);
      if (!saved)
        return makeStatus(StatusCode::Internal, "'{}' has no type", name);
      Element type = part == StoredPart::Weight ? options.weightType.value_or(*saved) : *saved;
      if (!isConvertible(*saved, type))
        type = *saved;
      ConvertJob job{name, type, *source.shapeOf(name, from), {}, {}};
      job.read = [&source, name, from, type](ShapeView offset, ShapeView shape, void *dst) {
        return source.read(name, from, offset, shape, type, dst);
      };
      job.write = [name, part, type, layout,
                   whole = job.shape](RankWriter &writer, const Shape &offset, const Shape &shape,
                                      const void *data) {
        ParamSlice param{name, ParamPart::Weight, type, whole, offset, shape, data};
        ASSIGN_OR_RETURN(TensorSlice slice, torchDistSlice(param, part, layout));
        return writer.add(slice);
      };
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

/// The different group settings that parameters have.
std::vector<GroupMeta> groupsOf(const FsdpCheckpoint &source) {
  std::map<std::pair<GroupKey, std::string>, GroupMeta> groups; // by all fields, as records
  for (const std::string &name : source.names()) {
    Result<GroupMeta> meta = source.groupMeta(name);
    if (!meta.isOk()) // buffers have none
      continue;
    std::string fields;
    for (const BytesItem &item : groupMetaItems("", *meta))
      fields += item.record;
    groups.try_emplace({GroupKey(name, meta->weightDecayMult, meta->lrMult), fields}, *meta);
  }
  std::vector<GroupMeta> ordered;
  for (const auto &[key, meta] : groups)
    ordered.push_back(meta);
  return ordered;
}

} // namespace

Status convertFsdpToTorchDist(const std::string &in, const SaveTarget &out,
                              const ConvertBackOptions &options, const ConvertRank &rank) {
  RETURN_IF_ERROR(checkFormat(in, CheckpointFormat::FsdpDtensor));
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(in));
  if (!options.weightsOnly)
    RETURN_IF_ERROR(checkOptimizerNames(reader));
  ASSIGN_OR_RETURN(FsdpCheckpoint source, FsdpCheckpoint::open(std::move(reader)));
  ASSIGN_OR_RETURN(std::vector<ConvertJob> jobs, jobsOf(source, options));
  return runJobs(out, std::move(jobs), options.pieceBytes, options.progress, rank,
                 [&](RankWriter &writer) {
                   RunState state;
                   if (source.reader().findObject("iteration") != nullptr) {
                     ASSIGN_OR_RETURN(state, readRunState(source.reader()));
                   }
                   std::vector<GroupMeta> groups =
                       options.weightsOnly ? std::vector<GroupMeta>() : groupsOf(source);
                   RETURN_IF_ERROR(addFile(out, "metadata.json", torchDistMetadataFile()));
                   RETURN_IF_ERROR(addBridgeFiles(in, out, state));
                   return writer.add(commonStateItem(state, groups));
                 });
}

} // namespace shardc::checkpoint
