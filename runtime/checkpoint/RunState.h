// Contents of a checkpoint besides its parameters: iteration, arguments, scheduler, counters and
// the generators' states, under the keys of Megatron-LM and Megatron-Bridge.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// The folder in a checkpoint for the recipe that its run was started from.
inline constexpr const char *kRecipeFolder = "recipe";

struct RunState {
  int64_t iteration = 0;
  double checkpointVersion = 3.0;
  PlainEntries args;      ///< Megatron's arguments; LM compares some of them on resume
  PlainEntries scheduler; ///< max_lr, num_steps and so on; empty if there is none
  PlainEntries
      gradScaler; ///< scale, growth_tracker, hysteresis_tracker; empty without dynamic scale
  int64_t consumedTrainSamples = 0, skippedTrainSamples = 0, consumedValidSamples = 0;
  double floatingPointOperations = 0;
  bool doTrain = true, doValid = true, doTest = true;
};

/// The objects `args`, `checkpoint_version`, `iteration`, `opt_param_scheduler.*`,
/// `optimizer.grad_scaler.*` and `num_floating_point_operations_so_far`. The counters of samples
/// join `args`.
std::vector<BytesItem> runStateItems(const RunState &state);
/// The state that a checkpoint's objects hold; InvalidInput without `iteration`.
Result<RunState> readRunState(const CheckpointReader &reader);

/// Takes the counters of samples out of `args`, where Megatron keeps them; InvalidInput for one
/// that is not a number of samples. `folder` is the checkpoint's.
Status takeCounters(RunState &state, std::string_view folder);

/// A small tensor of a file that torch.save wrote as a dictionary.
struct NamedTensor {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  std::string bytes;
};
/// The bytes that torch.save writes for a dictionary of tensors into `<stem>.pt`.
Result<std::string> tensorDictFile(std::string_view stem, std::span<const NamedTensor> tensors);
Result<std::vector<NamedTensor>> readTensorDictFile(std::span<const uint8_t> file);
/// Megatron-Bridge's `train_state.pt`.
Result<std::string> trainStateFile(const RunState &state);

/// Generator states as `rng_state.(pp, tp).0.*`: the states of Python's, numpy's, torch's and
/// Megatron's generators right after seeding. Our own runs use a counter-based generator and do not
/// need them.
struct RngItems {
  std::vector<BytesItem> objects;
  std::vector<TensorSlice> tensors;
  std::deque<std::string> storage; ///< what the tensors point to
};
Result<RngItems> rngItems(uint32_t seed, int pipelineRank, int tensorRank);
/// The same states as torch_dist holds them, `rng_state/shard_0.0_1.1`: one object of a job whose
/// model is not cut.
Result<BytesItem> torchDistRngItem(uint32_t seed);

} // namespace shardc::checkpoint
