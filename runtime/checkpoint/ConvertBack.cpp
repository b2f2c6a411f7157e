// Converts checkpoints of Megatron-FSDP to torch_dist.
#include <algorithm>
#include <map>
#include <memory>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/GroupOrder.h"

namespace shardc::checkpoint {
namespace {

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

Result<std::vector<ParamForm>> formsOf(const FsdpCheckpoint &source) {
  std::vector<ParamForm> forms;
  for (const std::string &name : source.names()) {
    std::optional<Shape> shape = source.shapeOf(name, ParamPart::Weight);
    std::optional<Element> type = source.typeOf(name, ParamPart::Weight);
    if (!shape || !type)
      return makeStatus(report::CannotConvert,
                        "'{}_w' and '{}_v' are not two halves of one shape in '{}'", name, name,
                        source.reader().folder());
    forms.push_back({name, std::move(*shape), *type});
  }
  return forms;
}

Status addExtraStates(const FsdpCheckpoint &source, const RunState &state, RankWriter &writer) {
  ASSIGN_OR_RETURN(std::vector<ParamForm> forms, formsOf(source));
  TorchDistLayout layout = torchDistLayout(forms, numbersLayers(state.args));
  ASSIGN_OR_RETURN(std::vector<BytesItem> states, extraStateItems(source.names(), layout));
  for (const BytesItem &state : states)
    RETURN_IF_ERROR(writer.add(state));
  return Status::ok();
}

Result<std::vector<ConvertJob>> jobsOf(const FsdpCheckpoint &source, const RunState &state,
                                       const ConvertBackOptions &options) {
  std::vector<std::string> names = source.names();
  ASSIGN_OR_RETURN(std::vector<ParamForm> forms, formsOf(source));
  auto layout =
      std::make_shared<const TorchDistLayout>(torchDistLayout(forms, numbersLayers(state.args)));
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
      job.read = [&source, name, from, type](const Box &box, void *dst) {
        return source.read(name, from, box, type, dst);
      };
      job.write = [part, layout](RankWriter &writer, const TensorSlice &slice) {
        ASSIGN_OR_RETURN(TensorSlice stored, torchDistSlice(slice, part, *layout));
        return writer.add(stored);
      };
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

/// The distinct group settings of the parameters.
Result<std::vector<GroupMeta>> groupsOf(const FsdpCheckpoint &source) {
  std::vector<GroupMeta> metas;
  for (const std::string &name : source.names()) {
    Result<GroupMeta> meta = source.groupMeta(name);
    if (meta.status().code() == StatusCode::NotFound) // buffers, for example, have none
      continue;
    RETURN_IF_ERROR(meta.status());
    metas.push_back(*meta);
  }
  auto hasMomentum = [](const GroupMeta &meta) { return meta.momentum.has_value(); };
  const bool isAnyOfMatrices = std::ranges::any_of(metas, hasMomentum);
  std::map<std::pair<GroupKey, std::string>, GroupMeta> groups; // by key and records of all fields
  for (GroupMeta &meta : metas) {
    meta.isOfRest = isAnyOfMatrices && !hasMomentum(meta);
    std::string fields;
    for (const BytesItem &item : groupMetaItems("", meta))
      fields += item.record;
    // Among groups with default multipliers, only a group with its own learning rate is not the
    // default group.
    bool hasOwnRate = !meta.defaultConfig && meta.weightDecayMult == 1 && meta.lrMult == 1;
    GroupKey key{meta.isExpertParallel, meta.weightDecayMult, meta.lrMult, hasOwnRate,
                 meta.isOfRest};
    groups.try_emplace({key, fields}, meta);
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
  ASSIGN_OR_RETURN(CheckpointReader reader,
                   CheckpointReader::open(in, Verify::Touched, options.emit));
  if (!options.weightsOnly)
    RETURN_IF_ERROR(checkOptimizerNames(reader));
  ASSIGN_OR_RETURN(FsdpCheckpoint source, FsdpCheckpoint::open(std::move(reader)));
  RunState state;
  if (source.reader().findObject("iteration") != nullptr) {
    ASSIGN_OR_RETURN(state, readRunState(source.reader()));
  }
  ASSIGN_OR_RETURN(std::vector<ConvertJob> jobs, jobsOf(source, state, options));
  return runJobs(out, std::move(jobs), options.pieceBytes, options.progress, rank,
                 [&](RankWriter &writer) {
                   std::vector<GroupMeta> groups;
                   if (!options.weightsOnly) {
                     ASSIGN_OR_RETURN(groups, groupsOf(source));
                   }
                   TorchDistCommon common = torchDistCommon(state, {std::move(groups)});
                   RETURN_IF_ERROR(addFile(out, kCommonFile, common.file));
                   RETURN_IF_ERROR(addFile(out, "metadata.json", torchDistMetadataFile()));
                   RETURN_IF_ERROR(addBridgeFiles(source.reader(), out, state, options.keptNames));
                   RETURN_IF_ERROR(addExtraStates(source, state, writer));
                   return writer.add(common.item);
                 });
}

} // namespace shardc::checkpoint
