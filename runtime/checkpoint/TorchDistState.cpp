// What a torch_dist checkpoint's common state says of the run.
#include <cstdlib>

#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

/// Puts one value of the common state where it belongs; others are left.
void takeLeaf(const ItemPath &path, PlainValue value, RunState &state, bool &hasIteration) {
  const auto *key = std::get_if<std::string>(&path[0]);
  if (key == nullptr)
    return;
  if (*key == "iteration" && value.as<int64_t>() != nullptr) {
    state.iteration = *value.as<int64_t>();
    hasIteration = true;
  } else if (*key == "checkpoint_version") {
    state.checkpointVersion = value.number().value_or(state.checkpointVersion);
  } else if (*key == "args" && value.as<PlainNamespace>() != nullptr) {
    state.args = value.as<PlainNamespace>()->entries;
  } else if (*key == "opt_param_scheduler" && path.size() == 2) {
    if (const auto *field = std::get_if<std::string>(&path[1]))
      state.scheduler.emplace_back(*field, std::move(value));
  } else if (*key == "num_floating_point_operations_so_far") {
    const auto *big = value.as<PlainBigInt>();
    state.floatingPointOperations =
        big != nullptr ? std::strtod(big->decimal.c_str(), nullptr) : value.number().value_or(0);
  }
}

} // namespace

Result<RunState> readRunState(const TorchDistCheckpoint &checkpoint) {
  RunState state;
  bool hasIteration = false;
  for (const CommonLeaf &leaf : checkpoint.common()) {
    Result<PlainValue> value = plainValueOf(checkpoint.commonGraph(), leaf.value);
    if (value.isOk() && !leaf.path.empty()) // others are classes that mean nothing to us
      takeLeaf(leaf.path, std::move(*value), state, hasIteration);
  }
  if (!hasIteration)
    return makeStatus(StatusCode::InvalidInput, "checkpoint '{}' does not say its iteration",
                      checkpoint.reader().folder());
  takeCounters(state);
  return state;
}

} // namespace shardc::checkpoint
