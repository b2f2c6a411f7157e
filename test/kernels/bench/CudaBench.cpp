// Times every CUDA kernel of Kernels.def on data in device memory. Prints the op, the type, the
// median of a launch, the rate in bytes of operands and results, the time of a copy of as many
// bytes relative to the kernel's time, the rate of the products' arithmetic, and the scratch. Also
// prints two upper bounds measured in the same run: a device-to-device copy, and a matrix product
// of 8192³.
//
//   shardc-cuda-bench [WORD...]     ops whose names contain one of the words; rank_sum is the sum
//                                   that channels compute over exchanged pieces
//   shardc-cuda-bench --workspaces  scratch of attention by shape, for compiler/predict
//   shardc-cuda-bench --attention   latent attention, windows and sinks at published sizes
//   shardc-cuda-bench --documents   attention within documents of several lengths
//   shardc-cuda-bench --symmetric   products of matrices with their transposes, beside the
//   library's
//                                   whole products: times, and the largest difference
//   shardc-cuda-bench --experts [MODEL...]  layers of experts, and their products as dense ones;
//                                   --skewed-experts: the same with some popular experts
#include <algorithm>
#include <cstdio>
#include <map>
#include <span>
#include <string>

#include <cuda_runtime.h>

#include "kernels/cuda/Queue.h"
#include "kernels/cuda/RankSum.h"
#include "kernels/cuda/Registry.h"
#include "test/kernels/bench/Cases.h"
#include "test/kernels/bench/Experts.h"
#include "test/kernels/bench/MedianTime.h"
#include "test/kernels/bench/Symmetric.h"

namespace shardc::kernels::bench {
namespace {

/// A microbatch of Llama 3 8B with half of its positions and a quarter of its vocabulary.
constexpr Model kLlamaModel = {1, 4096, 32, 8, 128, 14336, 32064};
/// Norms are short, so they use the whole model.
constexpr Model kLlamaWhole = {1, 8192, 32, 8, 128, 14336, 32064};
constexpr Model kLlama1b = {1, 8, 32, 8, 64, 8192, 8};
constexpr Model kQwen3Next = {4, 4096, 32, 16, 128, 512, 8};
constexpr Model kNemotronH = {4, 4096, 128, 8, 128, 8, 8, 64}; ///< state scans of the 8B
constexpr Model kGranite4 = {4, 4096, 48, 1, 128, 8, 8, 64};   ///< those of H Micro
constexpr Model kGpt2Batch = {16, 1024, 12, 12, 64, 3072, 50304};

struct Row {
  std::string_view op, dtypes;
};
constexpr Row kRows[] = {
#define CUDA_KERNEL(enumerator, op, family, dtypes) {op, dtypes},
#include "kernels/Kernels.def"
};

/// Kernel contexts on the default stream: one adds in a fixed order, the other in any order.
struct Setting {
  explicit Setting(bool inOrder) : context(optionsOf(inOrder)), queue(context, nullptr) {}

  static cuda::ContextOptions optionsOf(bool inOrder) {
    cuda::ContextOptions options = cuda::ContextOptions::fromEnvironment();
    options.deterministic = inOrder;
    return options;
  }

  cuda::Context context;
  cuda::Queue queue;
};
struct Settings {
  Setting inOrder{true}, inAnyOrder{false};
};

/// A case with its memory on the device.
class DeviceCase {
public:
  DeviceCase(Case &work, const Kernel &kernel, Setting &setting)
      : call(work.call), list_(work.list) {
    call.context = &setting.context;
    call.stream = &setting.queue;
    for (int i = 0; i < call.inCount; ++i)
      move(call.in[i]);
    for (int r = 0; r < call.outCount; ++r)
      move(call.out[r]);
    for (Tensor &tensor : list_)
      move(tensor);
    call.list = list_.empty() ? nullptr : list_.data();
    call.workspaceBytes = kernel.workspaceBytes ? kernel.workspaceBytes(call) : 0;
    if (call.workspaceBytes > 0)
      cudaMalloc(&call.workspace, call.workspaceBytes);
  }
  ~DeviceCase() {
    for (auto &[host, device] : moved_)
      cudaFree(device);
    cudaFree(call.workspace);
  }
  DeviceCase(const DeviceCase &) = delete;
  DeviceCase &operator=(const DeviceCase &) = delete;

  Call call;

private:
  void move(Tensor &tensor) {
    void *&device = moved_[tensor.data];
    auto bytes = static_cast<size_t>(tensor.numel() * dtypeBytes(tensor.dtype));
    if (!device) {
      cudaMalloc(&device, bytes);
      cudaMemcpy(device, tensor.data, bytes, cudaMemcpyHostToDevice);
    }
    tensor.data = device;
  }

  std::map<void *, void *> moved_;
  std::vector<Tensor> list_;
};

/// The time of a device-to-device copy that reads and writes `bytes` bytes in total, in
/// microseconds.
double copyMicroseconds(double bytes) {
  auto half = static_cast<size_t>(bytes / 2);
  void *from = nullptr, *to = nullptr;
  cudaMalloc(&from, half);
  cudaMalloc(&to, half);
  double us = medianMicroseconds(
      [&] { cudaMemcpyAsync(to, from, half, cudaMemcpyDeviceToDevice, nullptr); });
  cudaFree(from);
  cudaFree(to);
  return us;
}

/// Times a row of the kernel table and prints a line. `form` names another case of the op, if
/// given.
void timeRow(Setting &setting, const Row &row, DType data, std::string_view name,
             const Model &model, std::string_view form = {}) {
  std::unique_ptr<Case> work = makeCase(form.empty() ? row.op : form, data, model);
  const Kernel *kernel = findCudaKernel(row.op);
  if (!work || !kernel)
    return;
  if (work->call.attrs.chunk_rows > 0)
    work->call.attrs.chunk_rows = 2048; // the value that recipes use
  DeviceCase device(*work, *kernel, setting);
  if (const char *reason = kernel->accepts(device.call)) {
    std::printf("%-19s %-5s %-7s %s\n", std::string(row.op).c_str(),
                std::string(dtypeName(data)).c_str(), std::string(name).c_str(), reason);
    return;
  }
  double us = medianMicroseconds([&] { kernel->run(device.call); });
  std::optional<Report> failed = setting.queue.takeError();
  std::string error = failed ? failed->text : "";
  if (cudaError_t last = cudaGetLastError(); last != cudaSuccess)
    error += cudaGetErrorString(last);
  std::printf("%-19s %-5s %-7s %9.1f %8.0f %7.2f %8.1f %9.1f %s\n", std::string(row.op).c_str(),
              std::string(dtypeName(data)).c_str(), std::string(name).c_str(), us,
              work->bytes / us * 1e-3, copyMicroseconds(work->bytes) / us, work->flops / us * 1e-6,
              static_cast<double>(device.call.workspaceBytes) / (1 << 20), error.c_str());
}

/// Times an op that adds in any order and, for the gradient of attention, also in a fixed order,
/// because it has a kernel for each.
void timeOrders(Settings &settings, const Row &row, DType data, std::string_view name,
                const Model &model) {
  timeRow(settings.inOrder, row, data, name, model);
  if (!row.op.starts_with("attention") || !row.op.ends_with("bwd") || data != DType::BF16)
    return;
  timeRow(settings.inAnyOrder, row, data, "any", model);
}

/// Times the cases for which test/gpu/torch_attention.py measures PyTorch, and gpt-oss with and
/// without its window.
void timeAttention(Settings &settings) {
  struct Named {
    std::string_view name;
    Model model;
  };
  constexpr Named kLatent[] = {{"128 4k", {1, 4096, 128, 128, 192, 8, 8, 128}},
                               {"128 16k", {1, 16384, 128, 128, 192, 8, 8, 128}},
                               {"16 4k", {1, 4096, 16, 16, 192, 8, 8, 128}},
                               {"16 16k", {1, 16384, 16, 16, 192, 8, 8, 128}}};
  constexpr Named kSinks[] = {{"oss", {2, 4096, 64, 8, 64, 8, 8}},
                              {"oss w", {2, 4096, 64, 8, 64, 8, 8, 0, 127}}};
  auto timeBoth = [&](const Named &named) {
    timeRow(settings.inAnyOrder, {"attention", ""}, DType::BF16, named.name, named.model);
    timeRow(settings.inAnyOrder, {"attention_bwd", ""}, DType::BF16, named.name, named.model);
  };
  std::ranges::for_each(kLatent, timeBoth);
  std::ranges::for_each(kSinks, timeBoth);
  for (std::string_view op : {"attention_sink", "attention_sink_bwd"})
    timeRow(settings.inAnyOrder, {op, ""}, DType::BF16, kSinks[0].name, kSinks[0].model);
}

/// Times packed documents: 16,384 tokens in rows of 4,096, 32 heads of 128 channels, 8 groups, with
/// documents of 1,024 or 128 positions, of random lengths, and one per row.
void timeDocuments(Settings &settings) {
  for (int64_t length : {1024, 128, -1, 0}) {
    Model model = {4, 4096, 32, 8, 128, 8, 8};
    model.document = length;
    std::string name = length > 0 ? std::to_string(length) : length < 0 ? "random" : "one";
    for (std::string_view op : {"attention", "attention_bwd"})
      timeRow(settings.inOrder, {op, ""}, DType::BF16, name, model);
  }
}

/// Times the sum over four GPUs for the shard of a llama3_8b layer.
void timeRankSum(Setting &setting, DType wire, DType shard, bool accumulates, bool squares) {
  constexpr int kMembers = 4;
  constexpr int64_t kElements = 218'112'000 / kMembers;
  int64_t pieceBytes = kElements * dtypeBytes(wire), shardBytes = kElements * dtypeBytes(shard);
  ElementRange all = {0, kElements};
  kernels::cuda::RankSum sum;
  void *pieces = nullptr, *partials = nullptr, *total = nullptr;
  cudaMalloc(&pieces, static_cast<size_t>(kMembers * pieceBytes));
  cudaMalloc(&sum.out, static_cast<size_t>(shardBytes));
  cudaMalloc(&partials, static_cast<size_t>(squareSumsOf(kElements)) * sizeof(double));
  cudaMalloc(&total, sizeof(double));
  cudaMemset(pieces, 0, static_cast<size_t>(kMembers * pieceBytes));
  cudaMemset(sum.out, 0, static_cast<size_t>(shardBytes));
  sum.pieces = sum.own = pieces;
  sum.count = kMembers, sum.stride = sum.elements = kElements;
  sum.inType = wire, sum.outType = shard;
  sum.average = true, sum.accumulate = accumulates;
  if (squares) {
    sum.partials = static_cast<double *>(partials), sum.squares = static_cast<double *>(total);
    sum.valid = {&all, 1};
  }
  double us = medianMicroseconds([&] { kernels::cuda::launchRankSum(sum, setting.queue); });
  int64_t bytes = kMembers * pieceBytes + shardBytes * (accumulates ? 2 : 1);
  std::string types =
      std::string(dtypeName(wire)) + (accumulates ? "+" : ">") + std::string(dtypeName(shard));
  cudaError_t last = cudaGetLastError();
  std::printf("%-19s %-13s %9.1f %8.0f %8s %9s %s\n", squares ? "rank_sum, squares" : "rank_sum",
              types.c_str(), us, static_cast<double>(bytes) / us * 1e-3, "", "",
              last == cudaSuccess ? "" : cudaGetErrorString(last));
  for (void *memory : {pieces, sum.out, partials, total})
    cudaFree(memory);
}

/// Prints the workspace of attention for several shapes, with and without a fixed order of sums.
void printWorkspaces(Settings &settings) {
  std::printf("%-18s %6s %6s %6s %6s %6s %15s %15s\n", "op", "batch", "seq", "heads", "groups",
              "size", "any order", "fixed order");
  constexpr Model models[] = {
      {1, 1024, 12, 12, 64, 8, 8},  {16, 1024, 12, 12, 64, 8, 8}, {64, 1024, 12, 12, 64, 8, 8},
      {1, 512, 16, 8, 48, 8, 8},    {1, 2048, 16, 4, 128, 8, 8},  {1, 2048, 32, 8, 128, 8, 8},
      {1, 4096, 32, 8, 128, 8, 8},  {1, 8192, 32, 8, 128, 8, 8},  {2, 8192, 32, 8, 128, 8, 8},
      {1, 8192, 32, 32, 128, 8, 8}, {1, 8192, 32, 8, 64, 8, 8},   {1, 16384, 16, 8, 128, 8, 8},
      {1, 1000, 32, 8, 128, 8, 8},  {1, 130, 32, 8, 128, 8, 8}};
  for (std::string_view op : {"attention", "attention_qkv", "attention_bwd", "attention_qkv_bwd"})
    for (const Model &m : models) {
      std::unique_ptr<Case> work = makeCase(op, DType::BF16, m);
      const Kernel *kernel = findCudaKernel(op);
      size_t bytes[2] = {};
      for (bool inOrder : {false, true}) {
        Setting &setting = inOrder ? settings.inOrder : settings.inAnyOrder;
        work->call.context = &setting.context;
        bytes[inOrder] = kernel->workspaceBytes ? kernel->workspaceBytes(work->call) : 0;
      }
      std::printf("%-18s %6lld %6lld %6lld %6lld %6lld %15zu %15zu\n", op.data(),
                  static_cast<long long>(m.batch), static_cast<long long>(m.positions),
                  static_cast<long long>(m.heads), static_cast<long long>(m.groups),
                  static_cast<long long>(m.channels), bytes[0], bytes[1]);
    }
}

/// The device's limits, to compare ops with: the bandwidth of a large copy and the rate of a large
/// product.
void timeCeilings(Setting &setting) {
  size_t bytes = size_t{2} << 30;
  void *from = nullptr, *to = nullptr;
  cudaMalloc(&from, bytes);
  cudaMalloc(&to, bytes);
  cudaMemset(from, 1, bytes);
  double us =
      medianMicroseconds([&] { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice); });
  std::printf("%-19s %-5s %-7s %9.1f %8.0f\n", "copy of 2 GiB", "", "", us,
              2 * static_cast<double>(bytes) / us * 1e-3);
  cudaFree(from);
  cudaFree(to);
  constexpr Model square = {1, 8192, 64, 64, 128, 8192, 8};
  timeRow(setting, {"matmul", ""}, DType::BF16, "8192", square);
}

/// Mixers of hybrid models, with their layers' sizes.
void timeMixers(Settings &settings, const Row &row) {
  if (row.op.starts_with("delta_rule"))
    timeRow(settings.inOrder, row, DType::BF16, "qwen3", kQwen3Next);
  if (!row.op.starts_with("state_scan") && !row.op.starts_with("causal_conv"))
    return;
  timeRow(settings.inOrder, row, DType::BF16, "nemotron", kNemotronH);
  timeRow(settings.inOrder, row, DType::BF16, "granite", kGranite4);
}

} // namespace
} // namespace shardc::kernels::bench

/// The words are names or parts of names of ops to time; all are timed without words. A first word
/// that starts with `--` selects one of the special tables instead.
int main(int count, char **arguments) {
  using namespace shardc;
  using namespace shardc::kernels::bench;
  std::span<char *> words(arguments + 1, static_cast<size_t>(count - 1));
  auto isAsked = [&](std::string_view name) {
    return words.empty() || std::ranges::any_of(words, [&](std::string_view word) {
             return name.find(word) != name.npos;
           });
  };
  for (double skew : {0.0, 6.0})
    if (!words.empty() &&
        std::string_view(words[0]) == (skew > 0 ? "--skewed-experts" : "--experts")) {
      timeExperts(words.subspan(1), skew);
      return 0;
    }
  if (!words.empty() && std::string_view(words[0]) == "--symmetric") {
    timeSymmetric();
    return 0;
  }
  Settings settings;
  if (!words.empty() && std::string_view(words[0]) == "--workspaces") {
    printWorkspaces(settings);
    return 0;
  }
  std::printf("%-19s %-5s %-7s %9s %8s %7s %8s %9s\n", "op", "type", "model", "us", "GB/s", "copy",
              "TFLOP/s", "MiB");
  timeCeilings(settings.inOrder);
  if (!words.empty() && std::string_view(words[0]) == "--attention") {
    timeAttention(settings);
    return 0;
  }
  if (!words.empty() && std::string_view(words[0]) == "--documents") {
    timeDocuments(settings);
    return 0;
  }
  for (const Row &row : kRows) {
    if (!isAsked(row.op))
      continue;
    timeOrders(settings, row, DType::BF16, "llama", kLlamaModel);
    if (row.op.find("norm") != row.op.npos)
      timeOrders(settings, row, DType::BF16, "8192", kLlamaWhole);
    if (row.op == "quantize_blocks")
      timeRow(settings.inOrder, row, DType::BF16, "transposed", kLlamaModel,
              "quantize_blocks, transposed");
    if (row.op == "muon") {
      timeRow(settings.inOrder, row, DType::BF16, "halves", kLlamaModel, "muon, halves");
      timeRow(settings.inOrder, row, DType::BF16, "1b", kLlama1b, "muon, layer");
      timeRow(settings.inOrder, row, DType::BF16, "8b", kLlamaModel, "muon, layer");
    }
    timeMixers(settings, row);
    bool isProduct = row.op == "matmul" || row.op.starts_with("attention");
    if (isProduct)
      timeRow(settings.inOrder, row, DType::F32, "llama", {1, 1024, 32, 8, 128, 4096, 8});
    if (isProduct || row.op.find("norm") != row.op.npos || row.op.find("loss") != row.op.npos ||
        row.op.find("embedding") != row.op.npos || row.op.find("gelu") != row.op.npos)
      timeOrders(settings, row, DType::BF16, "gpt2", kGpt2Batch);
  }
  if (isAsked("rank_sum"))
    for (bool squares : {false, true}) {
      timeRankSum(settings.inOrder, DType::BF16, DType::BF16, false, squares);
      timeRankSum(settings.inOrder, DType::BF16, DType::F32, false, squares);
      timeRankSum(settings.inOrder, DType::BF16, DType::F32, true, squares);
      timeRankSum(settings.inOrder, DType::F32, DType::F32, true, squares);
    }
  return 0;
}
