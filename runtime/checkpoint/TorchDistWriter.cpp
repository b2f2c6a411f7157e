// Names tensors and states in the torch_dist format, and stacks layers and experts in them.
#include <algorithm>
#include <tuple>

#include "runtime/base/ParseNumber.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";

/// The name of a part in keys of optimizer state. Masters have another name in the distributed
/// optimizer.
std::string_view stateName(StoredPart part, bool isDistributed) {
  switch (part) {
  case StoredPart::Weight:
    return "";
  case StoredPart::Master:
    return isDistributed ? "param" : "fp32_param";
  case StoredPart::ExpAvg:
    return "exp_avg";
  case StoredPart::ExpAvgSq:
    return "exp_avg_sq";
  case StoredPart::Momentum:
    return "momentum_buffer";
  }
  return "";
}

/// Stacks a slice: adds a leading dimension of size `extent` to the tensor, in which the slice has
/// index `at`.
Status stack(TensorSlice &slice, int64_t at, int64_t extent) {
  if (at >= extent)
    return makeStatus(StatusCode::InvalidInput, "'{}' is number {} of {}", slice.name, at, extent);
  slice.globalShape.insert(slice.globalShape.begin(), extent);
  slice.box.offset.insert(slice.box.offset.begin(), at);
  slice.box.shape.insert(slice.box.shape.begin(), 1);
  return Status::ok();
}

/// Stacks an expert: `mlp.experts.linear_fc1.weight7` becomes
/// `mlp.experts.experts.linear_fc1.weight` at index 7.
Status stackExpert(TensorSlice &slice, int64_t experts) {
  size_t at = slice.name.find(kExperts);
  if (at == std::string::npos)
    return Status::ok();
  size_t digits = slice.name.find_last_not_of("0123456789") + 1;
  std::optional<int64_t> expert = parseCount(std::string_view(slice.name).substr(digits));
  if (!expert)
    return makeStatus(StatusCode::InvalidInput, "'{}' does not contain the number of its expert",
                      slice.name);
  slice.name.resize(digits);
  slice.name.insert(at + kExperts.size(), "experts.");
  return stack(slice, *expert, experts);
}

/// The parts of a name such as `decoder.layers.3.x`.
struct LayerName {
  std::string block, rest; ///< `decoder` and `x`
  int64_t layer = 0;
};

/// The layer in a tensor's name; nothing for names without a layer.
std::optional<LayerName> layerNameOf(const std::string &name) {
  constexpr std::string_view kLayers = ".layers.";
  size_t at = name.find(kLayers);
  if (at == std::string::npos)
    return std::nullopt;
  size_t begin = at + kLayers.size(), end = name.find('.', begin);
  if (end == std::string::npos)
    return std::nullopt;
  std::optional<int64_t> layer = parseCount(std::string_view(name).substr(begin, end - begin));
  return layer ? std::optional(LayerName{name.substr(0, at), name.substr(end + 1), *layer})
               : std::nullopt;
}

/// Stacks a layer: `decoder.layers.3.x` becomes `decoder.layers.x` at index 3, if the block is
/// stacked.
Status stackLayer(TensorSlice &slice, const std::map<std::string, int64_t> &layersOf) {
  std::optional<LayerName> name = layerNameOf(slice.name);
  auto block = name ? layersOf.find(name->block) : layersOf.end();
  if (block == layersOf.end())
    return Status::ok();
  slice.name = fmt::format("{}.layers.{}", name->block, name->rest);
  return stack(slice, name->layer, block->second);
}

} // namespace

bool numbersLayers(const PlainEntries &args) {
  const PlainValue *pattern = findEntry(args, "moe_layer_freq");
  const auto *items = pattern != nullptr ? pattern->as<PlainItems>() : nullptr;
  // In our older checkpoints, items are texts, and equal layers are stacked.
  return items != nullptr && !items->empty() && items->front().as<int64_t>() != nullptr;
}

TorchDistLayout torchDistLayout(std::span<const ParamForm> params, bool numbered) {
  using Form = std::tuple<Shape, Element, bool>;
  std::map<std::string, std::map<int64_t, std::map<std::string, Form>>> blocks;
  TorchDistLayout layout;
  for (const ParamForm &param : params) {
    if (std::optional<LayerName> parts = layerNameOf(param.name))
      blocks[parts->block][parts->layer][parts->rest] = {param.shape, param.type, param.isTrained};
    size_t digits = param.name.find_last_not_of("0123456789") + 1;
    std::optional<int64_t> expert = parseCount(std::string_view(param.name).substr(digits));
    if (expert && param.name.find(kExperts) != std::string::npos)
      layout.experts = std::max(layout.experts, *expert + 1);
  }
  for (const auto &[block, layers] : blocks) {
    bool isAlike = layers.rbegin()->first + 1 == static_cast<int64_t>(layers.size()) &&
                   !block.starts_with("mtp") && !numbered;
    for (const auto &[number, forms] : layers)
      isAlike = isAlike && forms == layers.begin()->second;
    if (isAlike)
      layout.layersOf[block] = static_cast<int64_t>(layers.size());
  }
  return layout;
}

Result<TensorSlice> torchDistSlice(const TensorSlice &param, StoredPart part,
                                   const TorchDistLayout &layout) {
  TensorSlice slice = param;
  RETURN_IF_ERROR(stackExpert(slice, layout.experts));
  RETURN_IF_ERROR(stackLayer(slice, layout.layersOf));
  if (part != StoredPart::Weight)
    slice.name =
        fmt::format("optimizer.state.{}.{}", stateName(part, layout.isDistributed), slice.name);
  return slice;
}

std::string torchDistMetadataFile() {
  return R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
         R"("common_backend": "torch", "common_backend_version": 1})";
}

} // namespace shardc::checkpoint
