// Contents of a checkpoint other than parameters: iteration, arguments, scheduler, counters and
// generator states, with the keys of Megatron-LM and Megatron-Bridge.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// The folder in a checkpoint that contains the recipe with which its run was started.
inline constexpr const char *kRecipeFolder = "recipe";

/// The state of a run at a save.
struct RunState {
  int64_t iteration = 0;
  double checkpointVersion = 3.0;
  PlainEntries args;      ///< Megatron's arguments; Megatron-LM compares some of them on resume
  PlainEntries scheduler; ///< max_lr, num_steps and others; empty without a scheduler
  PlainEntries
      gradScaler; ///< scale, growth_tracker, hysteresis_tracker; empty without a dynamic scale
  int64_t consumedTrainSamples = 0, skippedTrainSamples = 0, consumedValidSamples = 0;
  double floatingPointOperations = 0;
  bool doTrain = true, doValid = true, doTest = true;
};

/// The items `args`, `checkpoint_version`, `iteration`, `opt_param_scheduler.*`,
/// `optimizer.grad_scaler.*` and `num_floating_point_operations_so_far`. Sample counters are added
/// to `args`.
std::vector<BytesItem> runStateItems(const RunState &state);
/// Reads the state from a checkpoint's objects; InvalidInput without `iteration`.
Result<RunState> readRunState(const CheckpointReader &reader);

/// Moves the sample counters out of `args`, where Megatron stores them. InvalidInput for a value
/// that is not a number of samples. `folder` is the checkpoint's folder, for messages.
Status takeCounters(RunState &state, std::string_view folder);

/// A small tensor in a dictionary that torch.save wrote.
struct NamedTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::string bytes;
};
/// The bytes that torch.save writes for a dictionary of tensors to `<stem>.pt`.
Result<std::string> tensorDictFile(std::string_view stem, std::span<const NamedTensor> tensors);
/// The bytes of Megatron-Bridge's `train_state.pt`.
Result<std::string> trainStateFile(const RunState &state);

/// Generator states as items `rng_state.(pp, tp).0.*`: the generators of Python, numpy, torch and
/// Megatron right after seeding. Our own runs use a counter-based generator and do not need them.
struct RngItems {
  std::vector<BytesItem> objects;
  std::vector<TensorSlice> tensors;
  std::deque<std::string> storage; ///< the data of the tensors
};
/// The items of the rank with these indices.
Result<RngItems> rngItems(uint32_t seed, int pipelineRank, int tensorRank);
/// The states of rngItems() in the form of torch_dist, `rng_state/shard_0.0_1.1`: one object, for a
/// job without tensor and pipeline parallelism.
Result<BytesItem> torchDistRngItem(uint32_t seed);

} // namespace shardc::checkpoint
