// Reads the run's state from the common state of a torch_dist checkpoint.
#include <cstdlib>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

/// Stores one value of the common state in `state`. Values that have no place there are ignored.
void takeLeaf(const ItemPath &path, PlainValue value, RunState &state, bool &hasIteration) {
  const auto *key = std::get_if<std::string>(&path[0]);
  if (key == nullptr)
    return;
  if (*key == "iteration" && value.as<int64_t>() != nullptr) {
    state.iteration = *value.as<int64_t>();
    hasIteration = true;
  } else if (*key == "checkpoint_version") {
    state.checkpointVersion = value.number().value_or(state.checkpointVersion);
  } else if (*key == "opt_param_scheduler" && path.size() == 2) {
    if (const auto *field = std::get_if<std::string>(&path[1]))
      state.scheduler.emplace_back(*field, std::move(value));
  } else if (*key == "num_floating_point_operations_so_far") {
    const auto *big = value.as<PlainBigInt>();
    state.floatingPointOperations =
        big != nullptr ? std::strtod(big->decimal.c_str(), nullptr) : value.number().value_or(0);
  }
}

Result<int64_t> countOf(const PlainValue &value, const TorchDistCheckpoint &checkpoint) {
  std::optional<int64_t> count = value.wholeNumber();
  if (!count || *count < 0)
    return makeStatus(report::CheckpointDamaged,
                      "the optimizer's step in checkpoint '{}' is {}, not a number of updates",
                      checkpoint.reader().folder(), textOf(value));
  return *count;
}

/// Whether the path leads to the state of Megatron's DynamicGradScaler.
bool isOfScaler(const ItemPath &path) {
  return path.size() >= 3 && path.front() == PathSegment("optimizer") &&
         path[path.size() - 2] == PathSegment("grad_scaler") &&
         std::get_if<std::string>(&path.back()) != nullptr;
}

/// A value of the common state; a tensor with one number is read as that number.
Result<PlainValue> commonValue(const TorchDistCheckpoint &checkpoint, PyId value) {
  return plainValueOf(checkpoint.commonGraph(), value, &checkpoint.commonArchive());
}

} // namespace

Result<std::optional<int64_t>> savedUpdates(const TorchDistCheckpoint &checkpoint,
                                            std::string_view name) {
  const std::string plain = plainName(name);
  PyId place = kNoPy;
  for (const CommonLeaf &leaf : checkpoint.common())
    if (leaf.path == ItemPath{kUpdatesKey, plain} ||
        (!leaf.path.empty() && leaf.path.front() == PathSegment("optimizer") &&
         leaf.path.back() == PathSegment(kCommonStep)))
      place = leaf.value;
  if (place == kNoPy && !checkpoint.common().empty())
    for (const auto &group : checkpoint.paramGroups())
      if (auto step = group.find("step"); step != group.end()) {
        place = step->second;
        break;
      }
  if (place == kNoPy || checkpoint.commonGraph().is(place, PyKind::None))
    return std::optional<int64_t>();
  Result<PlainValue> found = commonValue(checkpoint, place);
  if (!found.isOk())
    return Status(found.status())
        .withContext(fmt::format("the optimizer's step in {}", checkpoint.commonPlace()));
  ASSIGN_OR_RETURN(int64_t count, countOf(*found, checkpoint));
  return std::optional(count);
}

Result<RunState> readRunState(const TorchDistCheckpoint &checkpoint) {
  RunState state;
  bool hasIteration = false;
  for (const CommonLeaf &leaf : checkpoint.common()) {
    if (nameOfPath(leaf.path) == "args")
      state.args = plainArguments(checkpoint.commonGraph(), leaf.value);
    Result<PlainValue> value = commonValue(checkpoint, leaf.value);
    if (isOfScaler(leaf.path)) {
      if (!value.isOk())
        return Status(value.status())
            .withContext(
                fmt::format("'{}' in {}", nameOfPath(leaf.path), checkpoint.commonPlace()));
      state.gradScaler.emplace_back(std::get<std::string>(leaf.path.back()), std::move(*value));
    } else if (value.isOk()) { // other values are of classes that we do not know
      takeLeaf(leaf.path, std::move(*value), state, hasIteration);
    }
  }
  if (!hasIteration)
    return makeStatus(report::CheckpointDamaged, "checkpoint '{}' does not contain its iteration",
                      checkpoint.reader().folder());
  RETURN_IF_ERROR(takeCounters(state, checkpoint.reader().folder()));
  return state;
}

} // namespace shardc::checkpoint
