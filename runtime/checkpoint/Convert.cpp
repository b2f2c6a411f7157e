#include "runtime/checkpoint/Convert.h"

#include <algorithm>
#include <set>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/checkpoint/Reading.h"

namespace shardc::checkpoint {
namespace {

std::string statePrefix(FsdpPrecision precision) {
  std::string_view wrappers = fsdpWrappers(precision);
  return fmt::format("optimizer.state.{}", wrappers.substr(0, wrappers.size() - 1));
}

/// The precision that the requested prefix implies; without one, the precision in the run's
/// arguments.
FsdpPrecision precisionOf(const TorchDistCheckpoint &source, const ConvertOptions &options) {
  if (!options.optimizerPrefix.empty())
    return options.optimizerPrefix == statePrefix(FsdpPrecision::Fp32) ? FsdpPrecision::Fp32
                                                                       : FsdpPrecision::Half;
  bool isSaid = false;
  for (const CommonLeaf &leaf : source.common()) {
    if (nameOfPath(leaf.path) != "args")
      continue;
    for (const auto &[name, value] : plainArguments(source.commonGraph(), leaf.value))
      if (const bool *isOn = value.as<bool>();
          isOn != nullptr && (name == "bf16" || name == "fp16")) {
        if (*isOn)
          return FsdpPrecision::Half;
        isSaid = true;
      }
  }
  return isSaid ? FsdpPrecision::Fp32 : FsdpPrecision::Half;
}

/// One conversion, which maps items of the source to items of the target.
class ToFsdp {
public:
  ToFsdp(const TorchDistCheckpoint &source, const ConvertOptions &options)
      : source_(source), options_(options), precision_(precisionOf(source, options)) {}

  Result<std::vector<ConvertJob>> jobs() const {
    RETURN_IF_ERROR(checkModules());
    RETURN_IF_ERROR(checkGates());
    std::vector<ConvertJob> jobs;
    for (const auto &[key, box] : source_.params()) {
      if (!isTaken(key.first, key.second))
        continue;
      if (key.second != StoredPart::Weight) {
        const StoredParam *weight = source_.find(key.first, StoredPart::Weight);
        if (weight != nullptr && weight->shape() != box.shape())
          return cannotConvert(
              "'{}' has the shape {} but its model tensor {}; its true shape is not in the "
              "checkpoint",
              box.tensor->name, shapeText(box.shape()), shapeText(weight->shape()));
      }
      jobs.push_back(jobOf(key.first, key.second, box));
    }
    return jobs;
  }

  Status writeObjects(RankWriter &writer) {
    RETURN_IF_ERROR(writeCommon(writer));
    RETURN_IF_ERROR(writeOthers(writer));
    RETURN_IF_ERROR(writeRerunState(writer));
    RETURN_IF_ERROR(writeAdamSteps(writer));
    return writeGroups(writer);
  }

private:
  bool isBelow(std::string_view name, const std::string &module) const {
    return fmt::format(".{}", name).find(fmt::format(".{}.", module)) != std::string::npos;
  }

  bool isGated(std::string_view name) const {
    return isGateable(name) &&
           (options_.isSwiglu ||
            std::ranges::any_of(options_.swigluModules,
                                [&](const std::string &module) { return isBelow(name, module); }));
  }

  /// Checks that the given modules exist. Otherwise, a misspelt module would silently leave its
  /// layers unsplit.
  Status checkModules() const {
    std::set<std::string, std::less<>> names, modules;
    for (const auto &[key, box] : source_.params())
      if (isGateable(key.first))
        names.insert(key.first);
    for (const std::string &name : names)
      for (size_t begin = 0, dot = name.find('.'); dot != std::string::npos;
           begin = dot + 1, dot = name.find('.', begin))
        if (name.find_first_not_of("0123456789", begin) != dot)
          modules.insert(name.substr(begin, dot - begin));
    for (const std::string &module : options_.swigluModules)
      if (std::ranges::none_of(names,
                               [&](const std::string &name) { return isBelow(name, module); }))
        return cannotConvert("no first layer of an MLP is below '{}'; modules with one: {}", module,
                             modules.empty() ? "none"
                                             : fmt::format("{}", fmt::join(modules, ", ")));
    return Status::ok();
  }

  /// Checks that the second layer of an MLP has as many inputs as the first has outputs, or half as
  /// many in a gated MLP.
  Status checkGates() const {
    constexpr std::string_view kFirst = ".linear_fc1.weight", kSecond = ".linear_fc2.weight";
    for (const auto &[key, first] : source_.params()) {
      std::string name = key.first;
      size_t at = name.find(kFirst);
      if (key.second != StoredPart::Weight || at == std::string::npos || !isGated(name))
        continue;
      const StoredParam *second =
          source_.find(name.replace(at, kFirst.size(), kSecond), StoredPart::Weight);
      if (second == nullptr || first.shape().size() != 2 || second->shape().size() != 2)
        continue;
      int64_t rows = first.shape()[0], columns = second->shape()[1];
      if (rows == columns)
        return cannotConvert(
            "'{}' is not gated: it has {} rows where '{}' has {} columns, and {} are "
            "needed; convert without --swiglu, or name gated modules by --swiglu-modules",
            key.first, rows, name, columns, 2 * columns);
    }
    return Status::ok();
  }

  /// Whether this part is written. The model's tensor is written from the fp32 master if there is
  /// one, so that a run continues bitwise equal. No other item needs masters.
  bool isTaken(std::string_view name, StoredPart part) const {
    bool hasMaster = source_.find(name, StoredPart::Master) != nullptr;
    switch (part) {
    case StoredPart::Weight:
      return options_.keepsModelDtype || !hasMaster;
    case StoredPart::Master:
      return !options_.keepsModelDtype;
    case StoredPart::ExpAvg:
    case StoredPart::ExpAvgSq:
    case StoredPart::Momentum:
      return true;
    }
    return false;
  }

  ItemPath targetPath(const std::string &name, ParamPart part) const {
    if (part == ParamPart::Weight)
      return options_.modelPrefix == "model.module"
                 ? tensorPath(name, part)
                 : ItemPath{fmt::format("{}.{}", options_.modelPrefix, name)};
    if (options_.optimizerPrefix.empty() || options_.optimizerPrefix == statePrefix(precision_))
      return tensorPath(name, part, precision_);
    return {fmt::format("{}.{}.{}", options_.optimizerPrefix, name, momentName(part))};
  }

  std::string targetName(const std::string &name) const {
    constexpr std::string_view kOnDisk = ".transformer_layer.", kModule = ".mtp_model_layer.";
    std::string renamed = name;
    size_t at = renamed.find(kOnDisk);
    if (options_.renamesMtp && name.starts_with("mtp.") && at != std::string::npos)
      renamed.replace(at, kOnDisk.size(), kModule);
    return renamed;
  }

  /// A job that reads one parameter or one of its moments from the source, and writes it under the
  /// target's name. A gated layer is written as two tensors.
  ConvertJob jobOf(const std::string &name, StoredPart part, const StoredParam &param) const {
    ParamPart target = part == StoredPart::ExpAvg     ? ParamPart::ExpAvg
                       : part == StoredPart::ExpAvgSq ? ParamPart::ExpAvgSq
                       : part == StoredPart::Momentum ? ParamPart::Momentum
                                                      : ParamPart::Weight;
    ConvertJob job{name, param.tensor->type, param.shape(), {}, {}};
    job.read = [this, param, type = job.type](const Box &box, void *dst) {
      return readStoredParam(source_.reader(), param, box, type, dst);
    };
    job.write = [this, target](RankWriter &writer, const TensorSlice &slice) {
      std::vector<TensorSlice> slices;
      RETURN_IF_ERROR(addParamSlices(slice, target, isGated(slice.name), slices));
      bool isSplit = slices.size() == 2;
      for (size_t i = 0; i < slices.size(); ++i) {
        const std::string name = isSplit ? splitNames(slice.name)[i] : slice.name;
        slices[i].path = targetPath(targetName(name), target);
        slices[i].name = nameOfPath(slices[i].path);
        RETURN_IF_ERROR(writer.add(slices[i]));
      }
      return Status::ok();
    };
    return job;
  }

  Status add(RankWriter &writer, Result<BytesItem> item) {
    if (!item.isOk())
      return item.status();
    if (!names_.insert(item->name).second)
      return cannotConvert("Key '{}' already exists in fsdp_dtensor_state_dict.", item->name);
    return writer.add(*item);
  }

  std::string placeOf(const ObjectMeta &object) const {
    return fmt::format("'{}' in '{}'", object.name, source_.reader().folder());
  }

  Status writeCommon(RankWriter &writer) {
    RETURN_IF_ERROR(checkNames(source_.commonPickle(),
                               fmt::format("the common state of '{}'", source_.reader().folder()),
                               options_.keptNames));
    for (const CommonLeaf &leaf : source_.common()) {
      ItemPath path = leaf.path;
      bool isOptimizer = path[0] == PathSegment("optimizer");
      // Update counts are written with the settings of each parameter.
      bool isCount = path[0] == PathSegment(kUpdatesKey) || path.back() == PathSegment(kCommonStep);
      if ((isOptimizer && options_.weightsOnly) || isCount)
        continue;
      if (isOptimizer && path.size() > 2 && path[1] == path[0] &&
          path[2] == PathSegment("param_groups"))
        path.erase(path.begin() + 1);
      RETURN_IF_ERROR(add(
          writer, objectItem(path, source_.commonGraph(), leaf.value, &source_.commonArchive())));
    }
    if (!names_.contains("checkpoint_version"))
      return add(writer, objectItem({"checkpoint_version"}, PlainValue(3.0)));
    return Status::ok();
  }

  Status writeOthers(RankWriter &writer) {
    for (const ObjectMeta *object : source_.otherObjects()) {
      ASSIGN_OR_RETURN(ObjectValue value, source_.reader().readObject(object->name));
      ASSIGN_OR_RETURN(std::string record, copyOfObject(value.archive, value.pickle,
                                                        placeOf(*object), options_.keptNames));
      BytesItem item{object->name, std::move(record), {object->name}};
      RETURN_IF_ERROR(add(writer, std::move(item)));
    }
    return Status::ok();
  }

  /// Writes the first object of this kind; every rank saved an equivalent one.
  Status writeRerunState(RankWriter &writer) {
    for (const ObjectMeta &object : source_.reader().metadata().objects) {
      if (!object.name.starts_with("rerun_state_machine_state"))
        continue;
      ASSIGN_OR_RETURN(ObjectValue value, source_.reader().readObject(object.name));
      RETURN_IF_ERROR(checkNames(value.pickle, placeOf(object), options_.keptNames));
      const PyGraph &graph = value.graph();
      PyId root = value.root();
      if (graph.is(root, PyKind::List) && graph.items(root).size() == 1)
        root = graph.items(root)[0];
      if (!graph.is(root, PyKind::Dict))
        return add(writer,
                   objectItem({"rerun_state_machine", "sharded"}, graph, root, &value.archive));
      std::span<const PyId> pairs = graph.items(root);
      for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
        std::string key(graph.asText(pairs[i]).value_or("?"));
        RETURN_IF_ERROR(add(writer, objectItem({"rerun_state_machine", "sharded", key}, graph,
                                               pairs[i + 1], &value.archive)));
      }
      return Status::ok();
    }
    return Status::ok();
  }

  /// Writes the update count next to the moments, where torch's own Adam expects it.
  Status writeAdamSteps(RankWriter &writer) {
    for (const auto &[key, box] : source_.params()) {
      if (options_.weightsOnly || key.second != StoredPart::ExpAvg)
        continue;
      ASSIGN_OR_RETURN(std::optional<int64_t> updates, savedUpdates(source_, key.first));
      if (!updates)
        continue;
      auto step = static_cast<float>(*updates);
      for (const TensorSlice &slice :
           adamStepSlices(targetName(key.first), isGated(key.first), step, precision_))
        RETURN_IF_ERROR(writer.add(slice));
    }
    return Status::ok();
  }

  /// Writes the optimizer settings of each parameter, from the group that the map names for it.
  Status writeGroups(RankWriter &writer) {
    if (!options_.groups || options_.weightsOnly)
      return Status::ok();
    std::vector<std::map<std::string, PyId>> groups = source_.paramGroups();
    for (const auto &[key, box] : source_.params()) {
      const std::string &name = key.first;
      if (key.second != StoredPart::Weight || name.ends_with(".expert_bias"))
        continue;
      auto group = options_.groups->find(name);
      if (group == options_.groups->end())
        return makeStatus(report::TensorsMissing, "Missing param group for {}.{}",
                          options_.modelPrefix, name);
      if (group->second < 0 || static_cast<size_t>(group->second) >= groups.size())
        return cannotConvert("Invalid param group id {} for {}.{}; the checkpoint has {} groups",
                             group->second, options_.modelPrefix, name, groups.size());
      RETURN_IF_ERROR(writeSettings(writer, name, groups[static_cast<size_t>(group->second)]));
    }
    return Status::ok();
  }

  /// Writes the optimizer settings of a parameter. A gated layer is not split here, since the
  /// loader requests the module's own name. Adds entries that the Adam of the loading run requires
  /// but that of the saving run did not store.
  Status writeSettings(RankWriter &writer, const std::string &name,
                       const std::map<std::string, PyId> &group) {
    std::string target = targetName(name);
    auto pathOf = [&](const std::string &field) {
      return groupMetaPath(target, field, precision_);
    };
    ASSIGN_OR_RETURN(std::optional<int64_t> updates, savedUpdates(source_, name));
    if (updates)
      RETURN_IF_ERROR(add(writer, objectItem(pathOf("step"), PlainValue(*updates))));
    for (const auto &[field, value] : group)
      if (field != "step" || !updates)
        RETURN_IF_ERROR(add(writer, objectItem(pathOf(field), source_.commonGraph(), value,
                                               &source_.commonArchive())));
    if (source_.find(name, StoredPart::ExpAvg) == nullptr)
      return Status::ok();
    for (const auto &[field, value] : torchAdamSettings())
      if (!group.contains(field))
        RETURN_IF_ERROR(add(writer, objectItem(pathOf(field), value)));
    return Status::ok();
  }

  const TorchDistCheckpoint &source_;
  const ConvertOptions &options_;
  FsdpPrecision precision_;
  std::set<std::string> names_;
};

} // namespace

Status convertTorchDistToFsdp(const std::string &in, const SaveTarget &out,
                              const ConvertOptions &options, const ConvertRank &rank) {
  ASSIGN_OR_RETURN(
      TorchDistCheckpoint source,
      TorchDistCheckpoint::open(in, options.weightsOnly, Verify::Touched, options.emit));
  ToFsdp conversion(source, options);
  ASSIGN_OR_RETURN(std::vector<ConvertJob> jobs, conversion.jobs());
  if (jobs.empty())
    return cannotConvert("'{}' contains no parameters", in);
  return runJobs(out, std::move(jobs), options.pieceBytes, options.progress, rank,
                 [&](RankWriter &writer) {
                   RETURN_IF_ERROR(conversion.writeObjects(writer));
                   Result<RunState> state = readRunState(source);
                   return addBridgeFiles(source.reader(), out, state.isOk() ? *state : RunState(),
                                         options.keptNames);
                 });
}

} // namespace shardc::checkpoint
