// Megatron's `torch_dist` checkpoints: keys without wrappers, layers and experts stacked in
// tensors, the common state as one object. Read by the same parameter names as `fsdp_dtensor`, and
// written with fully reshardable optimizer state.
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

/// What a stored key holds of parameters.
enum class StoredPart : uint8_t { Weight, Master, ExpAvg, ExpAvgSq, Momentum };
inline constexpr StoredPart kStoredParts[] = {StoredPart::Weight, StoredPart::Master,
                                              StoredPart::ExpAvg, StoredPart::ExpAvgSq,
                                              StoredPart::Momentum};
/// The item that stores a part: the weight as layers compute with it, not its master.
StoredPart storedPartOf(ParamPart part);

/// A value inside the common state with its path, which has at least one segment.
struct CommonLeaf {
  ItemPath path;
  PyId value = kNoPy;
};

class TorchDistCheckpoint {
public:
  /// InvalidInput with what to do for optimizer state that has no layout in the file
  /// (`dp_reshardable`, `dp_zero_gather_scatter`), unless `weightsOnly` leaves the optimizer out.
  /// `verify` and `emit` as in CheckpointReader.
  static Result<TorchDistCheckpoint> open(const std::string &folder, bool weightsOnly = false,
                                          Verify verify = Verify::Touched,
                                          ReportSink emit = nullptr);
  TorchDistCheckpoint(TorchDistCheckpoint &&) noexcept;
  ~TorchDistCheckpoint();

  const CheckpointReader &reader() const;
  /// Every parameter by its plain name, layers and experts separate, gated layers not split.
  const std::map<std::pair<std::string, StoredPart>, StoredParam, std::less<>> &params() const;
  const StoredParam *find(std::string_view name, StoredPart part) const;
  Status read(std::string_view name, StoredPart part, const Box &box, Element type,
              void *dst) const;
  /// Objects that are neither common state, generator state nor extra state of modules.
  const std::vector<const ObjectMeta *> &otherObjects() const;

  /// The common state: values with their paths, dictionaries and lists taken apart; the graph and
  /// the archive that they live in. Empty where the checkpoint has none, or one of nothing.
  const std::vector<CommonLeaf> &common() const;
  const PyGraph &commonGraph() const { return commonPickle().graph; }
  const ObjectValue &commonObject() const;
  const Pickle &commonPickle() const { return commonObject().pickle; }
  const ArchiveReader &commonArchive() const { return commonObject().archive; }
  /// Its location for messages: the file, or the item and the folder.
  std::string commonPlace() const;
  /// Optimizer groups in the order of the group map: settings by field.
  std::vector<std::map<std::string, PyId>> paramGroups() const;

private:
  struct State;
  explicit TorchDistCheckpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The state of the run from the common state; InvalidInput without `iteration`.
Result<RunState> readRunState(const TorchDistCheckpoint &checkpoint);

/// Updates that a parameter's moments count: by its own number, its group's, or the one beside the
/// moments; none if the checkpoint does not say. InvalidInput if it says no number.
Result<std::optional<int64_t>> savedUpdates(const TorchDistCheckpoint &checkpoint,
                                            std::string_view name);

/// How layers and experts are stacked when `torch_dist` is written.
struct TorchDistLayout {
  /// Layers of each block that is stacked, by the block's prefix: `decoder` -> 32. Blocks that are
  /// not here keep the number in the name (their layers differ).
  std::map<std::string, int64_t> layersOf = {};
  int64_t experts = 0;
  /// The optimizer's state is Megatron's distributed optimizer's, fully reshardable; otherwise that
  /// of its other optimizers, which call the masters by another name.
  bool isDistributed = true;
};
/// The properties of a parameter by which layers are compared.
struct ParamForm {
  std::string name;
  Shape shape;
  Element type;
  bool isTrained = true; ///< the optimizer has state of it
};
/// Whether Megatron stacks no layers of a model with these arguments, even if all are alike: its
/// `moe_layer_freq` is a list.
bool numbersLayers(const PlainEntries &args);
/// A block is stacked if all its layers have the same parameters of the same shapes and types, of
/// which the same are trained, and are numbered without a gap; those of `mtp` never are, and none
/// if the layers are `numbered`.
TorchDistLayout torchDistLayout(std::span<const ParamForm> params, bool numbered);
/// The tensor that a parameter's slice, under Megatron-Core's name, is saved as. `part` Weight is
/// the model's own tensor, Master the fp32 one in the optimizer.
Result<TensorSlice> torchDistSlice(const TensorSlice &param, StoredPart part,
                                   const TorchDistLayout &layout);
/// `metadata.json`, which makes a folder a torch_dist checkpoint.
std::string torchDistMetadataFile();
/// The optimizer's settings in the common state.
struct TorchDistOptimizer {
  std::vector<GroupMeta> groups = {}; ///< empty: no optimizer is saved
  bool isDistributed = true;          ///< as in TorchDistLayout
  bool hasMasters = false;            ///< of the others: masters are apart from the model's weights
  /// For the other optimizers: updates are counted with the moments, as torch's own Adam does, and
  /// not only with the groups, as fused ones do. Neither loads what the other has saved.
  bool countsWithMoments = false;
  /// Updates by parameter, where groups have parameters whose moments count differently.
  PlainEntries updates = {};
};
/// Keys of the update count in the common state; torch's own Adam keeps its count elsewhere.
inline constexpr const char *kUpdatesKey = "shardc_updates";
inline constexpr const char *kCommonStep = "common_step";
/// The common state, in the two places where Megatron-Core looks for it.
struct TorchDistCommon {
  BytesItem item;   ///< `common_state/shard_0_1`, for versions after 0.16
  std::string file; ///< kCommonFile, for those up to 0.16; later ones take it where it is there
};
inline constexpr const char *kCommonFile = "common.pt";
TorchDistCommon torchDistCommon(const RunState &state, const TorchDistOptimizer &optimizer);

/// The `_extra_state` objects that Megatron-Core's modules expect in a checkpoint, one for each
/// module that has one of the named parameters. Each is an empty tensor of bytes, as Transformer
/// Engine saves it without fp8. InvalidInput if a name does not fit the layout.
Result<std::vector<BytesItem>> extraStateItems(std::span<const std::string> params,
                                               const TorchDistLayout &layout);

} // namespace shardc::checkpoint
