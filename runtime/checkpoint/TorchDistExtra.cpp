// `_extra_state`: state that modules of Transformer Engine and Megatron-Core store in addition to
// their parameters. Loaders require one object per module, and for stacked layers one per layer.
#include <set>

#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/checkpoint/TorchDist.h"

namespace shardc::checkpoint {
namespace {

constexpr std::string_view kAttention = ".self_attention.";

std::string_view lastSegment(std::string_view name) {
  size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// Whether a module has extra state: linear layers, and norms that are not fused into them, which
/// belong to Transformer Engine since 2.0. Embedding tables and routers are Megatron's own and have
/// none. The loader of the output layer accepts none.
bool hasExtraState(std::string_view module) {
  std::string_view last = lastSegment(module);
  return last.starts_with("linear_") || last.ends_with("layernorm") || last == "enorm" ||
         last == "hnorm" || last == "eh_proj";
}

/// One parameter of each module with extra state, named `weight`. In grouped layers, the expert's
/// number follows.
std::set<std::string> weightsOf(std::span<const std::string> params) {
  std::set<std::string> weights;
  for (const std::string &param : params) {
    size_t dot = param.rfind('.');
    if (dot == std::string::npos)
      continue;
    std::string_view module = std::string_view(param).substr(0, dot), last = lastSegment(param);
    std::string_view expert = last.substr(last.find_last_not_of("0123456789") + 1);
    if (hasExtraState(module))
      weights.insert(fmt::format("{}.weight{}", module, expert));
    if (size_t at = param.find(kAttention); at != std::string::npos)
      weights.insert(param.substr(0, at) + std::string(kAttention) + "core_attention.weight");
  }
  return weights;
}

std::string joinedNumbers(const Shape &numbers, std::string_view ifNone) {
  return numbers.empty() ? std::string(ifNone) : fmt::format("{}", fmt::join(numbers, "."));
}

/// The pickle of `[torch.empty(0, dtype=torch.uint8)]`.
std::string emptyState() {
  PyGraph graph;
  const int64_t shape[] = {0};
  PyId tensor = addTensorToGraph(graph, Element::U8, shape, "0");
  Result<std::string> pickle = writePickle(graph, graph.list({&tensor, 1}));
  SHARDC_CHECK(pickle.isOk(), "a tensor has a pickle: {}", pickle.status().message());
  const ArchiveEntry storages[] = {{"data/0", {}}};
  Result<std::string> record = objectRecord(*pickle, storages);
  SHARDC_CHECK(record.isOk(), "memory takes every byte: {}", record.status().message());
  return std::move(*record);
}

} // namespace

Result<std::vector<BytesItem>> extraStateItems(std::span<const std::string> params,
                                               const TorchDistLayout &layout) {
  constexpr std::string_view kWeight = "weight";
  const std::string record = emptyState();
  std::vector<BytesItem> items;
  for (const std::string &weight : weightsOf(params)) { // stacked like the module's parameters
    ASSIGN_OR_RETURN(
        TensorSlice slice,
        torchDistSlice({.name = weight, .globalShape = {}, .box = {}}, StoredPart::Weight, layout));
    std::string module = slice.name.substr(0, slice.name.size() - kWeight.size());
    std::string name =
        fmt::format("{}_extra_state/shard_{}_{}", module, joinedNumbers(slice.box.offset, "0"),
                    joinedNumbers(slice.globalShape, "1"));
    items.push_back({name, record, {name}});
  }
  return items;
}

} // namespace shardc::checkpoint
