// Writes Megatron's common state: one dictionary in addition to the tensors, with arguments,
// counters, schedule and optimizer groups. Its form depends on the optimizer, whose loader merges
// it with the state dict that it requests.
#include <set>
#include <utility>

#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

constexpr const char *kStepStorage = "0";
constexpr const char *kScaleStorage = "1";
constexpr std::string_view kScale = "scale"; ///< a tensor; other entries are numbers

PlainValue groupValue(const GroupMeta &group) {
  PlainEntries fields = {{"wd_mult", group.weightDecayMult},
                         {"lr_mult", group.lrMult},
                         {"is_expert_parallel", group.isExpertParallel},
                         {"is_decoupled_lr", group.isDecoupledLr},
                         {"default_config", group.defaultConfig},
                         {"max_lr", group.maxLr},
                         {"min_lr", group.minLr},
                         {"lr", group.lr}};
  auto add = [&](const char *name, PlainValue value) {
    fields.emplace_back(name, std::move(value));
  };
  if (!group.momentum)
    add("betas", PlainTuple{{group.beta1, group.beta2}}), add("eps", group.eps);
  add("weight_decay", group.weightDecay);
  if (!group.momentum)
    add("bias_correction", group.biasCorrection);
  add("step", group.step);
  if (group.momentum) // its name in emerging_optimizers, and the older name
    add("momentum", *group.momentum), add("momentum_beta", *group.momentum);
  if (group.isOfRest) // newer versions identify groups by it
    add("optimizer", group.optimizerOfRest);
  return fields;
}

/// The entries of the common state except those of the optimizer.
PlainEntries stateEntries(const RunState &state, bool isDistributed) {
  PlainEntries args = state.args;
  for (const auto &[name, value] :
       {std::pair("iteration", state.iteration),
        std::pair("consumed_train_samples", state.consumedTrainSamples),
        std::pair("skipped_train_samples", state.skippedTrainSamples),
        std::pair("consumed_valid_samples", state.consumedValidSamples)})
    args.emplace_back(name, value);
  PlainEntries entries;
  entries.emplace_back("args", PlainNamespace{std::move(args)});
  entries.emplace_back("checkpoint_version", state.checkpointVersion);
  entries.emplace_back("iteration", state.iteration);
  entries.emplace_back("num_floating_point_operations_so_far",
                       PlainBigInt{fmt::format("{:.0f}", state.floatingPointOperations)});
  if (!state.scheduler.empty())
    entries.emplace_back("opt_param_scheduler", state.scheduler);
  PlainEntries content;
  if (isDistributed)
    content.emplace_back("distrib_optim_sharding_type", "fully_reshardable");
  content.emplace_back("singleton_local_shards", false);
  content.emplace_back("chained_optim_avoid_prefix", true);
  entries.emplace_back("content_metadata", std::move(content));
  return entries;
}

/// The state of Megatron's DynamicGradScaler.
PyId scalerNode(PyGraph &graph, const PlainEntries &scaler) {
  constexpr int64_t kOne[] = {1};
  std::vector<PyId> pairs;
  for (const auto &[field, value] : scaler) {
    pairs.push_back(graph.str(field));
    pairs.push_back(field == kScale ? addTensorToGraph(graph, Element::F32, kOne, kScaleStorage)
                                    : addToGraph(graph, value));
  }
  return graph.dict(pairs);
}

/// The properties that identify an optimizer of a chain.
std::pair<bool, bool> chainKeyOf(const GroupMeta &group) {
  return {group.isOfRest, group.isExpertParallel};
}

/// The node of one optimizer. Its lists of groups must be as long as the loader's. They have no
/// parameters, since the loader uses its own.
PyId oneOptimizerNode(PyGraph &graph, const TorchDistOptimizer &optimizer,
                      const PlainEntries &scaler, std::pair<bool, bool> key) {
  PlainItems values;
  bool hasMomentum = false;
  for (const GroupMeta &group : optimizer.groups)
    if (chainKeyOf(group) == key) {
      values.push_back(groupValue(group));
      hasMomentum |= group.momentum.has_value();
    }
  std::vector<PyId> inner;
  if (!optimizer.isDistributed) {
    PyId state = graph.dict({});
    if (optimizer.countsWithMoments && !hasMomentum)
      state = graph.dict(
          {graph.str(kCommonStep), addTensorToGraph(graph, Element::F32, {}, kStepStorage)});
    inner = {graph.str("state"), state};
  }
  inner.push_back(graph.str("param_groups"));
  inner.push_back(addToGraph(graph, values));
  PyId torchState = graph.dict(inner);
  if (!optimizer.isDistributed && !optimizer.hasMasters && scaler.empty())
    return torchState;
  std::vector<PyId> outer = {graph.str("optimizer"), torchState};
  if (optimizer.isDistributed) {
    outer.push_back(graph.str("param_state_sharding_type"));
    outer.push_back(graph.str("fully_reshardable"));
  }
  if (!scaler.empty()) {
    outer.push_back(graph.str("grad_scaler"));
    outer.push_back(scalerNode(graph, scaler));
  }
  return graph.dict(outer);
}

/// The node of all optimizers. Megatron chains a matrix optimizer and the optimizer of the other
/// parameters; each of them has a separate optimizer for experts that ranks divide.
PyId optimizerNode(PyGraph &graph, const TorchDistOptimizer &optimizer,
                   const PlainEntries &scaler) {
  std::set<std::pair<bool, bool>> keys;
  for (const GroupMeta &group : optimizer.groups)
    keys.insert(chainKeyOf(group));
  if (keys.size() == 1)
    return oneOptimizerNode(graph, optimizer, scaler, *keys.begin());
  std::vector<PyId> pairs;
  for (std::pair<bool, bool> key : keys) {
    pairs.push_back(graph.makeInteger(static_cast<int64_t>(pairs.size() / 2)));
    pairs.push_back(oneOptimizerNode(graph, optimizer, scaler, key));
  }
  return graph.dict(pairs);
}

} // namespace

/// Makes the common state twice: as an object of the checkpoint, which is a list with the
/// dictionary, and as the contents of a file. Up to two values are tensors with storages of their
/// own: the step and the loss scale.
TorchDistCommon torchDistCommon(const RunState &state, const TorchDistOptimizer &optimizer) {
  PyGraph graph;
  std::vector<PyId> pairs;
  for (const auto &[key, value] : stateEntries(state, optimizer.isDistributed)) {
    pairs.push_back(graph.str(key));
    pairs.push_back(addToGraph(graph, value));
  }
  if (!optimizer.updates.empty()) {
    pairs.push_back(graph.str(kUpdatesKey));
    pairs.push_back(addToGraph(graph, optimizer.updates));
  }
  std::vector<ArchiveEntry> storages;
  float step = optimizer.groups.empty() ? 0 : static_cast<float>(optimizer.groups[0].step);
  if (!optimizer.groups.empty()) {
    pairs.push_back(graph.str("optimizer"));
    pairs.push_back(optimizerNode(graph, optimizer, state.gradScaler));
    if (!optimizer.isDistributed && optimizer.countsWithMoments)
      storages.push_back({"data/0", {reinterpret_cast<const uint8_t *>(&step), sizeof step}});
  }
  const PlainValue *saved = findEntry(state.gradScaler, kScale);
  auto scale = static_cast<float>(saved != nullptr ? saved->number().value_or(0) : 0);
  if (saved != nullptr && !optimizer.groups.empty())
    storages.push_back({"data/1", {reinterpret_cast<const uint8_t *>(&scale), sizeof scale}});
  PyId root = graph.dict(pairs);
  auto record = [&](PyId value, std::string_view prefix) {
    Result<std::string> pickle = writePickle(graph, value);
    SHARDC_CHECK(pickle.isOk(), "plain values have a pickle: {}", pickle.status().message());
    Result<std::string> bytes = objectRecord(*pickle, storages, prefix);
    SHARDC_CHECK(bytes.isOk(), "memory takes every byte: {}", bytes.status().message());
    return std::move(*bytes);
  };
  std::string name = "common_state/shard_0_1";
  return {BytesItem{name, record(graph.list({&root, 1}), "archive"), {name}},
          record(root, "common")};
}

} // namespace shardc::checkpoint
