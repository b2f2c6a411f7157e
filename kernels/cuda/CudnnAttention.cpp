// Builds a cuDNN graph per key, caches its execution plan, and sets the addresses of a call before
// each execution.
#include "kernels/cuda/CudnnAttention.h"

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

// The frontend refers to NVRTC for kernels that are not used here. With its dynamic-loading
// variant, NVRTC's 200,000 relocations do not slow the start of every program. Everything else of
// the frontend is linked.
#include <cudnn.h>
#include <cudnn_frontend_shim.h>
#define HMODULE void *
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend/experimental/nvrtc_shim.h>
#undef NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#undef HMODULE

#include <cudnn_frontend.h>
#include <fmt/format.h>

#include "kernels/cuda/Queue.h"
#include "runtime/base/Reports.h"

namespace shardc::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensors = fe::graph::Tensor_attributes;

constexpr int kDevicesMax = 64;

enum Uid : int64_t { Q = 1, K, V, O, Stats, DO, DQ, DK, DV };

struct Key {
  int64_t batch, queries, keys, heads, groups;
  int64_t channels, values;   ///< channels of a head's q and k, and of its v
  int64_t queryRows, keyRows; ///< rows of a sample in memory; `queries` and `keys` may be fewer
  int64_t seen;               ///< causal window in keys, the query's own included; 0: none
  double scale;
  uint8_t causal, backward, deterministic, packed;
  uint16_t device, isF16;

  bool operator==(const Key &other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Key) == 96, "keys are compared and hashed as bytes: no padding");

struct KeyHash {
  size_t operator()(const Key &key) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char *>(&key), sizeof key});
  }
};

struct Built {
  std::unique_ptr<fe::graph::Graph> graph; ///< null: cuDNN does not support this call
  int64_t workspace = 0;
  std::string message; ///< why cuDNN does not support the call
};

} // namespace

/// cuDNN's handles by device, and the graphs that were built. The graphs are destroyed before the
/// handles that they use.
struct AttentionLibrary {
  std::mutex mutex;
  std::array<cudnnHandle_t, kDevicesMax> handles{};
  std::unordered_map<Key, Built, KeyHash> graphs;

  ~AttentionLibrary() {
    graphs.clear();
    for (cudnnHandle_t handle : handles)
      if (handle)
        cudnnDestroy(handle);
  }
};

std::shared_ptr<AttentionLibrary> makeAttentionLibrary() {
  return std::make_shared<AttentionLibrary>();
}

namespace {

using Library = AttentionLibrary;

/// Everything on which a cuDNN graph depends. Calls with equal keys share a graph. In pieces of a
/// sequence, the key has the extents of the piece, and the rows of the whole tensors.
Key keyOf(const Call &call, AttentionOp op) {
  const Tensor &first = call.in[op.backward ? 1 : 0];
  Key key = {};
  if (op.packed) {
    key.heads = call.attrs.num_heads, key.groups = call.attrs.num_groups;
    key.channels = key.values = call.attrs.head_dim;
  } else {
    key.heads = first.shape[2], key.channels = first.shape[3];
    key.groups = call.in[op.backward ? 2 : 1].shape[2];
    key.values = call.in[op.backward ? 3 : 2].shape[3];
  }
  key.batch = first.shape[0];
  key.queries = key.queryRows = first.shape[1];
  key.keys = key.keyRows = op.packed ? key.queries : call.in[op.backward ? 2 : 1].shape[1];
  key.scale = call.attrs.scale;
  key.causal = call.attrs.causal, key.backward = op.backward, key.packed = op.packed;
  if (op.piece) {
    key.queries = op.piece->queries, key.keys = op.piece->keys;
    key.causal = op.piece->causal;
  }
  if (int64_t window = call.attrs.window; window >= 0 && window < key.keys - 1)
    key.seen = window + 1;
  key.deterministic = contextOf(call).options().deterministic;
  int device = 0;
  cudaGetDevice(&device);
  key.device = static_cast<uint16_t>(device);
  key.isF16 = first.dtype == DType::F16;
  return key;
}

/// Checks what cuDNN's own check does not cover: the op's path and the alignment of operands.
bool fits(const Call &call, AttentionOp op) {
  if (kernelPath(attentionKindOf(call, op), contextOf(call).gpu()) != KernelPath::AttentionCudnn)
    return false;
  DType type = call.in[op.backward ? 1 : 0].dtype;
  auto isServed = [type](const Tensor &t) {
    return t.dtype == type && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  int parts = op.packed ? 1 : 3; // number of tensors that hold q, k and v
  bool all = true;
  for (int i = 0; i < (op.backward ? 2 + parts : parts); ++i)
    all &= isServed(call.in[i]);
  for (int i = 0; i < (op.backward ? parts : 1); ++i)
    all &= isServed(call.out[i]);
  return all;
}

class Builder {
public:
  explicit Builder(const Key &key) : key_(key), graph_(std::make_unique<fe::graph::Graph>()) {
    graph_->set_io_data_type(key.isF16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Built build(cudnnHandle_t handle) {
    key_.backward ? addBackward() : addForward();
    Built built;
    auto status = graph_->build(handle, {fe::HeurMode_t::A});
    if (status.is_good())
      status = graph_->get_workspace_size(built.workspace);
    if (status.is_bad())
      return {nullptr, 0, status.get_message()};
    built.graph = std::move(graph_);
    return built;
  }

private:
  using Handle = std::shared_ptr<Tensors>;

  /// One operand of a head's side: number of heads, rows to read or write, rows of a sample in
  /// memory, and channels of a head.
  struct Side {
    int64_t heads, rows, rowsOfSample, channels;
  };
  Side queries() const { return {key_.heads, key_.queries, key_.queryRows, key_.channels}; }
  Side outputs() const { return {key_.heads, key_.queries, key_.queryRows, key_.values}; }
  bool isSquare() const { return key_.queries == key_.keys; }
  /// Sets the mask: which keys a query sees.
  template <typename Options> void setMask(Options &options) const {
    options.set_causal_mask(key_.causal && isSquare())
        .set_causal_mask_bottom_right(key_.causal && !isSquare());
    if (key_.seen > 0)
      options.set_diagonal_band_left_bound(static_cast<int>(key_.seen));
  }
  Side keys() const { return {key_.groups, key_.keys, key_.keyRows, key_.channels}; }
  Side values() const { return {key_.groups, key_.keys, key_.keyRows, key_.values}; }

  /// Extents [B, heads, S, D], as cuDNN orders them; strides() describes the order [B, S, heads, D]
  /// in memory.
  std::vector<int64_t> dims(const Side &side) const {
    return {key_.batch, side.heads, side.rows, side.channels};
  }
  std::vector<int64_t> strides(const Side &side) const {
    int64_t row = side.heads * side.channels;
    return {side.rowsOfSample * row, side.channels, row, 1};
  }
  /// Strides of q, k or v. If packed, they share rows: each group has its queries, its key and its
  /// value.
  std::vector<int64_t> stridesOfPart(const Side &side) const {
    if (!key_.packed)
      return strides(side);
    int64_t row = (key_.heads + 2 * key_.groups) * key_.channels;
    int64_t head = key_.groups == key_.heads ? 3 * key_.channels : key_.channels;
    return {side.rowsOfSample * row, head, row, 1};
  }
  Handle input(Uid uid, const Side &side) {
    return graph_->tensor(Tensors().set_uid(uid).set_dim(dims(side)).set_stride(strides(side)));
  }
  Handle part(Uid uid, const Side &side) {
    return graph_->tensor(
        Tensors().set_uid(uid).set_dim(dims(side)).set_stride(stridesOfPart(side)));
  }
  void output(const Handle &tensor, Uid uid, const Side &side) {
    tensor->set_output(true).set_uid(uid).set_dim(dims(side)).set_stride(strides(side));
  }
  void outputPart(const Handle &tensor, Uid uid, const Side &side) {
    tensor->set_output(true).set_uid(uid).set_dim(dims(side)).set_stride(stridesOfPart(side));
  }
  void statistics(Tensors &tensor) const {
    tensor.set_uid(Stats)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({key_.batch, key_.heads, key_.queries, 1})
        .set_stride({key_.heads * key_.queries, key_.queries, 1, 1});
  }

  void addForward() {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_attn_scale(static_cast<float>(key_.scale));
    setMask(options);
    auto [o, stats] = graph_->sdpa(part(Q, queries()), part(K, keys()), part(V, values()), options);
    output(o, O, outputs());
    stats->set_output(true);
    statistics(*stats);
  }

  void addBackward() {
    Handle q = part(Q, queries()), k = part(K, keys()), v = part(V, values());
    Handle o = input(O, outputs()), dOut = input(DO, outputs());
    Tensors stats;
    statistics(stats);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_bwd")
                       .set_deterministic_algorithm(key_.deterministic)
                       .set_attn_scale(static_cast<float>(key_.scale));
    setMask(options);
    auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, o, dOut, graph_->tensor(stats), options);
    outputPart(dq, DQ, queries());
    outputPart(dk, DK, keys());
    outputPart(dv, DV, values());
  }

  const Key key_;
  std::unique_ptr<fe::graph::Graph> graph_;
};

/// cuDNN compiles some kernels with NVRTC, which it looks up by name. Loading it here, from the
/// path of the build if necessary, lets cuDNN find it outside the loader's search path. Without
/// NVRTC, cuDNN refuses the calls that need it.
void loadNvrtc() {
  static const bool isLoaded = [] {
    const std::string name = fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000);
    for (const char *file : {name.c_str(), SHARDC_NVRTC_FILE})
      if (::dlopen(file, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE))
        return true;
    return false;
  }();
  (void)isLoaded;
}

/// Returns the handle of the current device, or null and the reason. The caller holds the mutex.
cudnnHandle_t handleOf(Library &lib, int device, std::string &message) {
  if (device >= kDevicesMax) {
    message = fmt::format("device {} is beyond the limit of {} devices", device, kDevicesMax);
    return nullptr;
  }
  cudnnHandle_t &handle = lib.handles[static_cast<size_t>(device)];
  if (!handle) {
    loadNvrtc();
    if (cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
      message = fmt::format("cudnnCreate: {}", cudnnGetErrorString(status));
  }
  return handle;
}

/// The warning for a call that cuDNN was expected to support: slower kernels execute it.
Report refusalOf(const Key &key, const std::string &message) {
  return makeReport(report::AttentionRefused, key.backward ? "attention_bwd" : "attention",
                    key.batch, key.queries, key.heads, key.channels, key.groups,
                    message.empty() ? "it gives no reason" : message);
}

/// The graph of a call, built on first use. The caller holds the mutex.
const Built &builtFor(Context &context, const Key &key) {
  Library &lib = context.attention();
  auto [at, isNew] = lib.graphs.try_emplace(key);
  Built &built = at->second;
  if (!isNew)
    return built;
  cudnnHandle_t handle = handleOf(lib, key.device, built.message);
  if (handle && context.refuses(Service::Attention))
    built.message = "a test has it refused";
  else if (handle)
    built = Builder(key).build(handle);
  if (!built.graph)
    context.emit(refusalOf(key, built.message));
  return built;
}

using Addresses = std::unordered_map<int64_t, void *>;

/// Sets the addresses of q, k and v in shared rows: the first element of each.
void addParts(Addresses &data, const Key &key, void *rows, Uid q, Uid k, Uid v) {
  auto *first = static_cast<uint16_t *>(rows); // bf16 or f16, of the same size
  int64_t queries = key.heads / key.groups;
  data[q] = first;
  data[k] = first + queries * key.channels;
  data[v] = first + (queries + 1) * key.channels;
}

/// Moves the addresses from the operands' first rows to the first rows of a piece. The statistics
/// of a piece are in a separate buffer.
void moveTo(const AttentionPiece &piece, const Key &key, Addresses &data) {
  for (Uid uid : {Q, O, DO, DQ})
    if (auto at = data.find(uid); at != data.end()) {
      int64_t channels = uid == O || uid == DO ? key.values : key.channels;
      at->second = static_cast<uint16_t *>(at->second) + piece.firstQuery * key.heads * channels;
    }
  data[Stats] = piece.statistics;
}

/// Maps the tensors of a call to the names of cuDNN's graph. Packed calls have queries, keys and
/// values in one tensor.
Addresses addressesOf(const Call &call, AttentionOp op, const Key &key) {
  const Tensor *in = call.in, *out = call.out;
  Addresses data;
  if (op.packed && op.backward) {
    data = {{DO, in[0].data}, {O, in[2].data}, {Stats, in[3].data}};
    addParts(data, key, in[1].data, Q, K, V);
    addParts(data, key, out[0].data, DQ, DK, DV);
  } else if (op.packed) {
    data = {{O, out[0].data}, {Stats, out[1].data}};
    addParts(data, key, in[0].data, Q, K, V);
  } else if (op.backward) {
    data = {{DO, in[0].data},  {Q, in[1].data},   {K, in[2].data},
            {V, in[3].data},   {O, in[4].data},   {Stats, in[5].data},
            {DQ, out[0].data}, {DK, out[1].data}, {DV, out[2].data}};
  } else {
    data = {
        {Q, in[0].data}, {K, in[1].data}, {V, in[2].data}, {O, out[0].data}, {Stats, out[1].data}};
  }
  if (op.piece)
    moveTo(*op.piece, key, data);
  return data;
}

} // namespace

int cudnnVersion() { return static_cast<int>(cudnnGetVersion()); }

bool hasCudnnAttention(const Call &call, AttentionOp op) {
  if (!fits(call, op))
    return false;
  Context &context = contextOf(call);
  std::lock_guard lock(context.attention().mutex);
  return builtFor(context, keyOf(call, op)).graph != nullptr;
}

int64_t cudnnAttentionWorkspace(const Call &call, AttentionOp op) {
  Context &context = contextOf(call);
  std::lock_guard lock(context.attention().mutex);
  return builtFor(context, keyOf(call, op)).workspace;
}

void runCudnnAttention(const Call &call, AttentionOp op, void *workspace) {
  Queue &queue = queueOf(call);
  Library &lib = queue.context().attention();
  std::lock_guard lock(lib.mutex);
  Key key = keyOf(call, op);
  const Built &built = builtFor(queue.context(), key);
  std::string message = built.message;
  cudnnHandle_t handle = handleOf(lib, key.device, message);
  if (!handle || !built.graph)
    return queue.reportError(
        fmt::format("cuDNN does not support the attention of this call: {}", message));
  if (cudnnStatus_t status = cudnnSetStream(handle, queue); status != CUDNN_STATUS_SUCCESS)
    return queue.reportError(fmt::format("cudnnSetStream: {}", cudnnGetErrorString(status)));
  Addresses data = addressesOf(call, op, key);
  if (auto status = built.graph->execute(handle, data, workspace); status.is_bad())
    queue.reportError(fmt::format("cuDNN's attention: {}", status.get_message()));
  queue.noteLibrary();
}

} // namespace shardc::kernels::cuda
