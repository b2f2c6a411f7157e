#include "test/kernels/bench/Experts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/cuda/PlainGemm.h"
#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Registry.h"
#include "runtime/base/Philox.h"
#include "test/kernels/bench/MedianTime.h"

namespace shardc::kernels::bench {
namespace {

/// Sizes of a layer of experts, as in a known model.
struct Layer {
  std::string_view name;
  int64_t tokens, hidden, width, experts, choices;

  int64_t rows() const { return tokens * choices; }
};

/// The tokens of one GPU. For DeepSeek-V3, the experts are those of one of 8 ranks.
constexpr Layer kLayers[] = {{"mixtral_8x7b", 8192, 4096, 14336, 8, 2},
                             {"qwen3_30b_a3b", 16384, 2048, 768, 128, 8},
                             {"gpt_oss_20b", 8192, 2880, 2880, 32, 4},
                             {"moonlight_16b", 8192, 2048, 1408, 64, 6},
                             {"deepseek_v3_ep8", 16384, 7168, 2048, 32, 1}};

/// Chooses each token's experts: those with the largest of random logits.
std::vector<int32_t> choose(const Layer &layer, double skew) {
  std::vector<int32_t> ids;
  std::vector<std::pair<double, int32_t>> logits(static_cast<size_t>(layer.experts));
  for (int64_t token = 0; token < layer.tokens; ++token) {
    for (int32_t e = 0; e < layer.experts; ++e) {
      double bias = skew * (0.5 - static_cast<double>(e) / static_cast<double>(layer.experts - 1));
      auto at = static_cast<uint64_t>(token * layer.experts + e);
      logits[static_cast<size_t>(e)] = {-bias - static_cast<double>(normalAt(7, at)), e};
    }
    std::partial_sort(logits.begin(), logits.begin() + layer.choices, logits.end());
    for (int64_t k = 0; k < layer.choices; ++k)
      ids.push_back(logits[static_cast<size_t>(k)].second);
  }
  return ids;
}

/// The ops of a layer with their memory.
class Sequence {
public:
  Sequence() {
    cudaStreamCreate(&stream_);
    cuda::ContextOptions options = cuda::ContextOptions::fromEnvironment();
    context_ = std::make_unique<cuda::Context>(options);
    queue_ = std::make_unique<cuda::Queue>(*context_, stream_);
  }
  ~Sequence() {
    for (void *p : memory_)
      cudaFree(p);
    queue_.reset();
    cudaStreamDestroy(stream_);
  }
  Sequence(const Sequence &) = delete;
  Sequence &operator=(const Sequence &) = delete;

  /// Makes a tensor of normally distributed numbers, like PyTorch's benchmark: the power that
  /// products draw depends on their operands.
  Tensor make(DType dtype, std::initializer_list<int64_t> shape, double std = 1.0) {
    Tensor tensor;
    tensor.dtype = dtype;
    for (int64_t extent : shape)
      tensor.shape[tensor.rank++] = extent;
    tensor.data = allocate(static_cast<size_t>(tensor.numel() * dtypeBytes(dtype)));
    if (dtype != DType::I32)
      cuda::launchNormal(tensor.data, dtype, tensor.numel(), std,
                         static_cast<uint32_t>(memory_.size()), *queue_);
    return tensor;
  }

  /// Appends an op. `change` sets its attributes.
  void add(std::string_view op, std::initializer_list<Tensor> in, std::initializer_list<Tensor> out,
           const std::function<void(Attrs &)> &change = {}) {
    const Kernel *kernel = findCudaKernel(op);
    Call call;
    for (const Tensor &tensor : in)
      call.in[call.inCount++] = tensor;
    for (const Tensor &tensor : out)
      call.out[call.outCount++] = tensor;
    if (change)
      change(call.attrs);
    call.context = context_.get(), call.stream = queue_.get();
    if (const char *reason = kernel->accepts(call))
      std::printf("%s: %s\n", std::string(op).c_str(), reason);
    call.workspaceBytes = kernel->workspaceBytes ? kernel->workspaceBytes(call) : 0;
    call.workspace = call.workspaceBytes > 0 ? allocate(call.workspaceBytes) : nullptr;
    steps_.push_back({op, kernel, call});
  }

  void run() {
    for (const Step &step : steps_)
      step.kernel->run(step.call);
  }

  /// Prints the time of each op.
  void printSteps() {
    for (const Step &step : steps_)
      std::printf("  %-20s %8.3f\n", std::string(step.op).c_str(),
                  median([&] { step.kernel->run(step.call); }));
  }

  /// Prints milliseconds of all ops as one graph: at the start, and at the steady state, in which
  /// the GPU has lowered its clock because of its power limit.
  void printGraph() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    run();
    cudaStreamEndCapture(stream_, &graph);
    cudaGraphInstantiate(&instance, graph, 0);
    // The GPU is idle first, as it is in PyTorch's benchmark while PyTorch compiles.
    cudaStreamSynchronize(stream_);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    auto launch = [&] { cudaGraphLaunch(instance, stream_); };
    double first = median(launch);
    std::printf(" %.3f, steady %.3f\n", first, steady(first, launch));
    cudaGraphExecDestroy(instance);
    cudaGraphDestroy(graph);
    if (auto failed = queue_->takeError())
      std::printf("%s\n", failed->text.c_str());
    if (cudaError_t last = cudaGetLastError(); last != cudaSuccess)
      std::printf("%s\n", cudaGetErrorString(last));
  }

private:
  struct Step {
    std::string_view op;
    const Kernel *kernel;
    Call call;
  };

  void *allocate(size_t bytes) {
    void *p = nullptr;
    if (cudaMalloc(&p, bytes) != cudaSuccess)
      std::printf("no memory for %zu bytes\n", bytes);
    return memory_.emplace_back(p);
  }

  template <typename Launch> double median(Launch launch) {
    return medianMilliseconds(12, 4, launch, stream_);
  }

  /// Returns the mean time of consecutive runs over 0.6 s, after 0.2 s of warmup.
  template <typename Launch> double steady(double ms, Launch launch) {
    if (ms <= 0)
      return -1;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    int groups = static_cast<int>(400 / ms) + 1;
    for (int i = 0; i < groups / 2; ++i)
      launch();
    cudaEventRecord(begin, stream_);
    for (int i = 0; i < groups; ++i)
      launch();
    cudaEventRecord(end, stream_);
    float all = -1;
    if (cudaEventSynchronize(end) == cudaSuccess)
      cudaEventElapsedTime(&all, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return static_cast<double>(all) / groups;
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Context> context_;
  std::unique_ptr<cuda::Queue> queue_;
  std::deque<void *> memory_;
  std::deque<Step> steps_;
};

void transB(Attrs &attrs) { attrs.trans_b = true; }
void transA(Attrs &attrs) { attrs.trans_a = true; }

/// The tensor as a column with one element per row.
Tensor flat(Tensor tensor) {
  tensor.shape[0] = tensor.numel(), tensor.shape[1] = 1;
  return tensor;
}

/// Adds the ops of a plan for a layer of experts and its router, forward and backward, in bf16.
void addLayer(Sequence &s, const Layer &l, double skew) {
  constexpr DType kData = DType::BF16;
  int64_t n = l.rows(), h = l.hidden, f = l.width;
  constexpr double kStd = 0.02; // standard deviation of weights
  Tensor x = s.make(kData, {l.tokens, h}), router = s.make(kData, {l.experts, h}, kStd);
  Tensor logits = s.make(DType::F32, {l.tokens, l.experts}),
         dlogits = s.make(kData, {l.tokens, l.experts});
  Tensor dlogitsWide = s.make(DType::F32, {l.tokens, l.experts});
  Tensor chosenIds = s.make(DType::I32, {l.tokens, l.choices});
  Tensor ids = s.make(DType::I32, {l.tokens, l.choices});
  std::vector<int32_t> chosen = choose(l, skew);
  cudaMemcpy(ids.data, chosen.data(), chosen.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
  Tensor places = s.make(DType::I32, {l.tokens, l.choices}), placesFlat = flat(places);
  Tensor counts = s.make(DType::I32, {1, l.experts});
  Tensor weights = s.make(DType::F32, {l.tokens, l.choices});
  Tensor ofRows = s.make(DType::F32, {n, 1}), dofRows = s.make(DType::F32, {n, 1});
  Tensor w1 = s.make(kData, {l.experts, 2 * f, h}, kStd),
         w2 = s.make(kData, {l.experts, h, f}, kStd);
  Tensor dw1 = s.make(kData, {l.experts, 2 * f, h}), dw2 = s.make(kData, {l.experts, h, f});
  Tensor in = s.make(kData, {n, h}), gated = s.make(kData, {n, 2 * f}),
         wide = s.make(kData, {n, f});
  Tensor y = s.make(kData, {n, h}), out = s.make(kData, {l.tokens, h});
  s.add("matmul", {x, router}, {logits}, transB);
  s.add("router_topk", {logits}, {chosenIds, weights},
        [&l](Attrs &attrs) { attrs.topk = l.choices; });
  s.add("make_runs", {ids}, {counts, places}, [n](Attrs &attrs) { attrs.bound = n; });
  s.add("dispatch", {flat(weights), placesFlat}, {ofRows});
  s.add("dispatch", {x, places}, {in});
  s.add("grouped_matmul", {in, w1, counts}, {gated}, transB);
  s.add("weighted_swiglu", {gated, ofRows}, {wide});
  s.add("grouped_matmul", {wide, w2, counts}, {y}, transB);
  s.add("combine", {y, places}, {out});
  Tensor dout = s.make(kData, {l.tokens, h}), dy = s.make(kData, {n, h});
  Tensor dwide = s.make(kData, {n, f}), dgated = s.make(kData, {n, 2 * f});
  Tensor din = s.make(kData, {n, h}), dx = s.make(kData, {l.tokens, h});
  Tensor drouter = s.make(kData, {l.experts, h});
  Tensor dweights = s.make(DType::F32, {l.tokens, l.choices});
  s.add("dispatch", {dout, places}, {dy});
  s.add("grouped_matmul", {dy, w2, counts}, {dwide});
  s.add("weighted_swiglu_bwd", {dwide, gated, ofRows}, {dgated, dofRows, wide});
  s.add("grouped_matmul_bwd", {dy, wide, counts}, {dw2});
  s.add("grouped_matmul_bwd", {dgated, in, counts}, {dw1});
  s.add("grouped_matmul", {dgated, w1, counts}, {din});
  s.add("combine", {din, places}, {dx});
  s.add("combine", {dofRows, placesFlat}, {flat(dweights)});
  s.add("router_topk_bwd", {dweights, logits, ids}, {dlogitsWide},
        [&l](Attrs &attrs) { attrs.topk = l.choices; });
  s.add("cast", {dlogitsWide}, {dlogits});
  s.add("matmul", {dlogits, x}, {drouter}, transA);
  dx.accumulate = true;
  s.add("matmul", {dlogits, router}, {dx});
}

/// Adds the same products as dense ones with the same numbers of rows. No product reads another
/// one's result, so repeated runs do not change the values.
void addDense(Sequence &s, const Layer &l) {
  constexpr DType kData = DType::BF16;
  int64_t n = l.rows(), h = l.hidden, f = l.width;
  Tensor in = s.make(kData, {n, h}), gated = s.make(kData, {n, 2 * f}),
         wide = s.make(kData, {n, f});
  Tensor w1 = s.make(kData, {2 * f, h}), w2 = s.make(kData, {h, f});
  Tensor dw1 = s.make(kData, {2 * f, h}), dw2 = s.make(kData, {h, f});
  Tensor toGated = s.make(kData, {n, 2 * f}), toWide = s.make(kData, {n, f}),
         toRows = s.make(kData, {n, h});
  s.add("matmul", {in, w1}, {toGated}, transB);
  s.add("matmul", {wide, w2}, {toRows}, transB);
  s.add("matmul", {in, wide}, {dw2}, transA);
  s.add("matmul", {in, w2}, {toWide});
  s.add("matmul", {gated, in}, {dw1}, transA);
  s.add("matmul", {gated, w1}, {toRows});
}

} // namespace

void timeExperts(std::span<char *> words, double skew) {
  for (const Layer &layer : kLayers) {
    bool isAsked = words.empty() || std::ranges::any_of(words, [&](std::string_view word) {
                     return layer.name.find(word) != layer.name.npos;
                   });
    if (!isAsked)
      continue;
    for (bool isDense : {false, true}) {
      Sequence sequence;
      if (isDense)
        addDense(sequence, layer);
      else
        addLayer(sequence, layer, skew);
      sequence.run();
      std::printf("%s%s", std::string(layer.name).c_str(), isDense ? ", dense" : "");
      sequence.printGraph();
      sequence.printSteps();
    }
  }
}

} // namespace shardc::kernels::bench
