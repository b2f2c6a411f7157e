// Megatron's `torch_dist` checkpoints: keys have no wrapper prefixes, layers and experts are
// stacked in tensors, and the common state is one object. They are read by the same parameter names
// as `fsdp_dtensor`, and written with fully reshardable optimizer state.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/StoredParam.h"

namespace shardc::checkpoint {

/// The part of a parameter that a stored key contains.
enum class StoredPart : uint8_t { Weight, Master, ExpAvg, ExpAvgSq, Momentum };
inline constexpr StoredPart kStoredParts[] = {StoredPart::Weight, StoredPart::Master,
                                              StoredPart::ExpAvg, StoredPart::ExpAvgSq,
                                              StoredPart::Momentum};
/// The stored part for a ParamPart. The weight is the one with which layers compute, not its
/// master.
StoredPart storedPartOf(ParamPart part);

/// A value in the common state and its path, which has at least one segment.
struct CommonLeaf {
  ItemPath path;
  PyId value = kNoPy;
};

/// The parameters of a `torch_dist` checkpoint by plain names, with layers and experts that are
/// stacked there taken apart.
class TorchDistCheckpoint {
public:
  /// Opens a checkpoint. InvalidInput, with a remedy, if the file does not describe the layout of
  /// the optimizer state (`dp_reshardable`, `dp_zero_gather_scatter`), unless `weightsOnly` omits
  /// the optimizer. For `verify` and `emit`, see CheckpointReader.
  static Result<TorchDistCheckpoint> open(const std::string &folder, bool weightsOnly = false,
                                          Verify verify = Verify::Touched,
                                          ReportSink emit = nullptr);
  TorchDistCheckpoint(TorchDistCheckpoint &&) noexcept;
  ~TorchDistCheckpoint();

  const CheckpointReader &reader() const;
  /// Every parameter by its plain name; layers and experts are separate, gated layers are not
  /// split.
  const std::map<std::pair<std::string, StoredPart>, StoredParam, std::less<>> &params() const;
  const StoredParam *find(std::string_view name, StoredPart part) const;
  Status read(std::string_view name, StoredPart part, const Box &box, Element type,
              void *dst) const;
  /// Objects that are neither common state, generator state nor extra state of modules.
  const std::vector<const ObjectMeta *> &otherObjects() const;

  /// The common state: leaves with their paths, and the graph and archive to which they belong.
  /// Empty if the checkpoint has no common state or an empty one.
  const std::vector<CommonLeaf> &common() const;
  const PyGraph &commonGraph() const { return commonPickle().graph; }
  const ObjectValue &commonObject() const;
  const Pickle &commonPickle() const { return commonObject().pickle; }
  const ArchiveReader &commonArchive() const { return commonObject().archive; }
  /// Location of the common state for messages: the file, or the item and the folder.
  std::string commonPlace() const;
  /// Optimizer groups in the order of the group map. Settings are stored by field.
  std::vector<std::map<std::string, PyId>> paramGroups() const;

private:
  struct State;
  explicit TorchDistCheckpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Reads the run's state from the common state; InvalidInput without `iteration`.
Result<RunState> readRunState(const TorchDistCheckpoint &checkpoint);

/// The number of updates that a parameter's moments include: from its own count, its group's, or
/// the one next to the moments. Nothing if the checkpoint has none. InvalidInput if it is not a
/// number.
Result<std::optional<int64_t>> savedUpdates(const TorchDistCheckpoint &checkpoint,
                                            std::string_view name);

/// How layers and experts are stacked when `torch_dist` is written.
struct TorchDistLayout {
  /// Number of layers of each stacked block, by the block's prefix: `decoder` -> 32. Other blocks
  /// keep layer numbers in names, since their layers differ.
  std::map<std::string, int64_t> layersOf = {};
  int64_t experts = 0;
  /// Whether the optimizer state has the form of Megatron's distributed optimizer, fully
  /// reshardable. Its other optimizers store masters under another name.
  bool isDistributed = true;
};
/// The properties of a parameter that must be equal in all layers of a stacked block.
struct ParamForm {
  std::string name;
  Shape shape;
  Element type;
  bool isTrained = true; ///< whether the optimizer has state for it
};
/// Whether Megatron keeps layer numbers in names for a model with these arguments, even if all
/// layers are alike. It does if `moe_layer_freq` is a list.
bool numbersLayers(const PlainEntries &args);
/// Determines the stacked blocks. A block is stacked if its layers are numbered without gaps, and
/// all layers have the same parameters, with the same shapes and types, and train the same ones.
/// Layers of `mtp` are never stacked, and no layers are if `numbered`.
TorchDistLayout torchDistLayout(std::span<const ParamForm> params, bool numbered);
/// The tensor as which a slice of a parameter with Megatron-Core's name is saved. For `part`,
/// Weight is the model's own tensor, and Master the fp32 tensor of the optimizer.
Result<TensorSlice> torchDistSlice(const TensorSlice &param, StoredPart part,
                                   const TorchDistLayout &layout);
/// The text of `metadata.json`, which marks a folder as a torch_dist checkpoint.
std::string torchDistMetadataFile();
/// The optimizer's settings in the common state.
struct TorchDistOptimizer {
  std::vector<GroupMeta> groups = {}; ///< empty: no optimizer is saved
  bool isDistributed = true;          ///< see TorchDistLayout
  bool hasMasters = false;            ///< other optimizers: masters are separate from weights
  /// For other optimizers: whether updates are counted next to the moments, as by torch's own Adam,
  /// and not only in the groups, as by fused optimizers. Neither kind loads what the other saved.
  bool countsWithMoments = false;
  /// Update counts by parameter, if a group has parameters with different counts.
  PlainEntries updates = {};
};
/// Keys of update counts in the common state. torch's own Adam stores its counts elsewhere.
inline constexpr const char *kUpdatesKey = "shardc_updates";
inline constexpr const char *kCommonStep = "common_step";
/// The common state in the two places where Megatron-Core expects it.
struct TorchDistCommon {
  BytesItem item;   ///< `common_state/shard_0_1`, for versions after 0.16
  std::string file; ///< kCommonFile, for versions up to 0.16; later ones read it if it exists
};
inline constexpr const char *kCommonFile = "common.pt";
TorchDistCommon torchDistCommon(const RunState &state, const TorchDistOptimizer &optimizer);

/// The `_extra_state` objects that Megatron-Core's modules expect in a checkpoint: one per module
/// that has one of the named parameters. Each is an empty tensor of bytes, as Transformer Engine
/// saves it without fp8. InvalidInput if a name does not match the layout.
Result<std::vector<BytesItem>> extraStateItems(std::span<const std::string> params,
                                               const TorchDistLayout &layout);

} // namespace shardc::checkpoint
