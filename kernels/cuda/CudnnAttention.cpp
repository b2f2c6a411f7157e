#include "kernels/cuda/CudnnAttention.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include "kernels/cuda/Errors.h"
#include "kernels/cuda/Registry.h"

namespace shardc::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensors = fe::graph::Tensor_attributes;

constexpr int kDevicesMax = 64;

enum Uid : int64_t { Q = 1, K, V, O, Stats, DO, DQ, DK, DV };

struct Key {
  int64_t batch, positions, heads, groups, channels;
  double scale;
  uint8_t causal, backward, deterministic, unused;
  int32_t device;

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Key) == 56, "keys are compared and hashed as bytes: no padding");

struct KeyHash {
  size_t operator()(const Key &key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char *>(&key), sizeof key});
  }
};

struct Built {
  std::unique_ptr<fe::graph::Graph> graph; ///< null: cuDNN does not serve this
  int64_t workspace = 0;
};

struct Library {
  std::mutex mutex;
  std::array<cudnnHandle_t, kDevicesMax> handles{};
  std::unordered_map<Key, Built, KeyHash> graphs;
};

Library &library() {
  static Library instance;
  return instance;
}

Key keyOf(const Call &call, bool backward) {
  const Tensor &q = call.in[backward ? 1 : 0], &k = call.in[backward ? 2 : 1];
  Key key = {};
  key.batch = q.shape[0], key.positions = q.shape[1], key.heads = q.shape[2];
  key.groups = k.shape[2], key.channels = q.shape[3];
  key.scale = call.attrs.scale;
  key.causal = call.attrs.causal, key.backward = backward;
  key.deterministic = isCudaDeterministic();
  int device = 0;
  cudaGetDevice(&device);
  key.device = device;
  return key;
}

/// What is not a question of support but of meaning.
bool fits(const Call &call, bool backward) {
  if (call.attrs.p > 0 || call.attrs.reset_mask)
    return false;
  auto isBf16 = [](const Tensor &t) {
    return t.dtype == DType::BF16 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  bool all = true;
  for (int i = 0; i < (backward ? 5 : 3); ++i)
    all &= isBf16(call.in[i]);
  for (int i = 0; i < (backward ? 3 : 1); ++i)
    all &= isBf16(call.out[i]);
  return all;
}

class Builder {
public:
  explicit Builder(const Key &key) : key_(key), graph_(std::make_unique<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Built build(cudnnHandle_t handle) {
    key_.backward ? addBackward() : addForward();
    Built built;
    if (graph_->build(handle, {fe::HeurMode_t::A}).is_bad() ||
        graph_->get_workspace_size(built.workspace).is_bad())
      return {};
    built.graph = std::move(graph_);
    return built;
  }

private:
  using Handle = std::shared_ptr<Tensors>;

  /// [B, S, heads, D] in memory, [B, heads, S, D] to cuDNN.
  std::vector<int64_t> dims(int64_t heads) const {
    return {key_.batch, heads, key_.positions, key_.channels};
  }
  std::vector<int64_t> strides(int64_t heads) const {
    int64_t row = heads * key_.channels;
    return {key_.positions * row, key_.channels, row, 1};
  }
  Handle input(Uid uid, int64_t heads) {
    return graph_->tensor(Tensors().set_uid(uid).set_dim(dims(heads)).set_stride(strides(heads)));
  }
  void output(const Handle &tensor, Uid uid, int64_t heads) {
    tensor->set_output(true).set_uid(uid).set_dim(dims(heads)).set_stride(strides(heads));
  }
  void statistics(Tensors &tensor) const {
    tensor.set_uid(Stats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({key_.batch, key_.heads, key_.positions, 1})
        .set_stride({key_.heads * key_.positions, key_.positions, 1, 1});
  }

  void addForward() {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(key_.causal)
                       .set_attn_scale(static_cast<float>(key_.scale));
    auto [o, stats] =
        graph_->sdpa(input(Q, key_.heads), input(K, key_.groups), input(V, key_.groups), options);
    output(o, O, key_.heads);
    stats->set_output(true);
    statistics(*stats);
  }

  void addBackward() {
    Handle q = input(Q, key_.heads), k = input(K, key_.groups), v = input(V, key_.groups);
    Handle o = input(O, key_.heads), dOut = input(DO, key_.heads);
    Tensors stats;
    statistics(stats);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_bwd")
                       .set_causal_mask(key_.causal)
                       .set_deterministic_algorithm(key_.deterministic)
                       .set_attn_scale(static_cast<float>(key_.scale));
    auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, o, dOut, graph_->tensor(stats), options);
    output(dq, DQ, key_.heads);
    output(dk, DK, key_.groups);
    output(dv, DV, key_.groups);
  }

  const Key key_;
  std::unique_ptr<fe::graph::Graph> graph_;
};

/// Handle of the current device, under the mutex; null after a reported failure.
cudnnHandle_t handleOf(Library &lib, int device) {
  if (device >= kDevicesMax)
    return nullptr;
  cudnnHandle_t &handle = lib.handles[static_cast<size_t>(device)];
  if (!handle)
    if (cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
      reportError(fmt::format("cudnnCreate: {}", cudnnGetErrorString(status)));
  return handle;
}

/// The graph of a call, built the first time; under the mutex.
const Built &builtFor(Library &lib, const Key &key) {
  auto [at, isNew] = lib.graphs.try_emplace(key);
  if (!isNew)
    return at->second;
  if (cudnnHandle_t handle = handleOf(lib, key.device))
    at->second = Builder(key).build(handle);
  return at->second;
}

} // namespace

bool hasCudnnAttention(const Call &call, bool backward) {
  if (!fits(call, backward))
    return false;
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  return builtFor(lib, keyOf(call, backward)).graph != nullptr;
}

int64_t cudnnAttentionWorkspace(const Call &call, bool backward) {
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  return builtFor(lib, keyOf(call, backward)).workspace;
}

void runCudnnAttention(const Call &call, bool backward, void *workspace) {
  Library &lib = library();
  std::lock_guard lock(lib.mutex);
  Key key = keyOf(call, backward);
  const Built &built = builtFor(lib, key);
  cudnnHandle_t handle = handleOf(lib, key.device);
  if (!handle || !built.graph)
    return reportError("cuDNN has no attention for this call");
  if (cudnnStatus_t status = cudnnSetStream(handle, static_cast<cudaStream_t>(call.stream));
      status != CUDNN_STATUS_SUCCESS)
    return reportError(fmt::format("cudnnSetStream: {}", cudnnGetErrorString(status)));
  std::unordered_map<int64_t, void *> data;
  if (backward)
    data = {{DO, call.in[0].data},  {Q, call.in[1].data},   {K, call.in[2].data},
            {V, call.in[3].data},   {O, call.in[4].data},   {Stats, call.in[5].data},
            {DQ, call.out[0].data}, {DK, call.out[1].data}, {DV, call.out[2].data}};
  else
    data = {{Q, call.in[0].data},
            {K, call.in[1].data},
            {V, call.in[2].data},
            {O, call.out[0].data},
            {Stats, call.out[1].data}};
  if (auto status = built.graph->execute(handle, data, workspace); status.is_bad())
    reportError(fmt::format("cuDNN's attention: {}", status.get_message()));
}

} // namespace shardc::kernels::cuda
