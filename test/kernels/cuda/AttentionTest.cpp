// Compares attention and its gradients with the host's: masks, grouped queries, dropout, documents,
// odd sizes, all types. Does not test whether cuDNN or a hand-written kernel computes a call.
#include <cmath>
#include <cstring>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Registry.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

struct Setting {
  bench::Model model;
  bool causal = true, documents = false;
  double p = 0;
  int64_t window = -1;
  double softCap = 0;
  int64_t chunk = 0;

  bool seesOneKey() const { return model.positions == 1 || window == 0 || chunk == 1; }
};

const Setting kSettings[] = {
    {{1, 1, 1, 1, 8, 8, 8}},
    {{2, 5, 6, 3, 4, 8, 8}, false},
    {{1, 37, 2, 1, 40, 8, 8}},
    {{2, 128, 4, 2, 64, 8, 8}},
    {{2, 128, 4, 4, 64, 8, 8}, false},
    {{1, 513, 4, 1, 128, 8, 8}},
    {{2, 100, 4, 2, 64, 8, 8}, true, false, 0.2},
    {{2, 130, 4, 2, 64, 8, 8}, true, true},
    {{2, 70, 2, 2, 32, 8, 8}, false, true, 0.1},
    {{2, 70, 2, 2, 32, 8, 8}, true, false, 1.0},
    {{1, 65, 2, 2, 200, 8, 8}},
    {{1, 512, 8, 2, 128, 8, 8}, false},
    {{2, 256, 4, 4, 64, 8, 8}},
    {{2, 256, 4, 1, 64, 8, 8}},
    {{1, 131, 4, 2, 64, 8, 8}, true, false, 0, 0},
    {{2, 131, 4, 2, 64, 8, 8}, true, false, 0, 1},
    {{1, 257, 4, 4, 64, 8, 8}, true, false, 0, 31},
    {{1, 300, 8, 2, 128, 8, 8}, true, false, 0, 32},
    {{2, 131, 2, 1, 40, 8, 8}, true, true, 0.1, 50},
    {{1, 100, 2, 2, 32, 8, 8}, true, false, 0, 4096},
    {{2, 128, 4, 2, 64, 8, 8}, true, false, 0, -1, 1.5},
    {{1, 131, 4, 2, 256, 8, 8}, true, false, 0, 32, 50.0},
    {{2, 70, 2, 2, 32, 8, 8}, false, true, 0.1, -1, 0.5},
    {{2, 131, 4, 2, 64, 8, 8}, true, false, 0, -1, 0, 1},
    {{1, 257, 4, 4, 64, 8, 8}, true, false, 0, -1, 0, 32},
    {{2, 300, 8, 2, 128, 8, 8}, true, false, 0.1, 20, 0, 50},
    {{1, 100, 2, 2, 32, 8, 8}, true, true, 0, -1, 0, 4096},
};

void apply(const Setting &setting, Call &call, int docsOperand) {
  call.attrs.causal = setting.causal;
  call.attrs.reset_mask = setting.documents;
  call.attrs.p = setting.p;
  call.attrs.window = setting.window;
  call.attrs.soft_cap = setting.softCap;
  call.attrs.chunk = setting.chunk;
  call.attrs.salt = 3;
  auto *docs = static_cast<int32_t *>(call.in[docsOperand].data);
  int64_t positions = setting.model.positions;
  for (int64_t i = 0; i < setting.model.batch * positions; ++i) {
    auto position = static_cast<int32_t>(i % positions);
    docs[i] = setting.documents ? position / 23 * 23 : 0;
  }
  auto *samples = static_cast<int64_t *>(call.in[docsOperand + 1].data);
  for (int64_t b = 0; b < setting.model.batch; ++b)
    samples[b] = 11 + b;
}

class CudaAttention : public testing::TestWithParam<int> {};

/// Compares the gradients, computed from the host's results of the forward pass.
void expectGradients(const Setting &setting, DType data, bool inOrder) {
  DeviceRun forward("attention", data, setting.model);
  for (int i = 0; i < 3; ++i)
    forward.fill(forward.call().in[i], 40 + i, 2.0);
  apply(setting, forward.call(), 3);
  Results host = forward.onHost();
  DeviceRun backward("attention_bwd", data, setting.model);
  Call &call = backward.call();
  for (int i = 0; i < 4; ++i)
    backward.fill(call.in[i], i == 0 ? 50 : 39 + static_cast<uint64_t>(i), i == 0 ? 1.0 : 2.0);
  for (int r = 0; r < 2; ++r)
    std::memcpy(call.in[4 + r].data, host[static_cast<size_t>(r)].data(),
                host[static_cast<size_t>(r)].size());
  apply(setting, call, 6);
  if (!inOrder)
    backward.inAnyOrder();
  Results want = backward.onHost(), got = backward.onDevice(inOrder);
  ASSERT_EQ(got.size(), 3u);
  // For one key, gradients of scores are zero; kernels compute only rounding errors of them.
  for (int r = setting.seesOneKey() ? 2 : 0; r < 3; ++r)
    expectNear(call.out[r], got[static_cast<size_t>(r)], want[static_cast<size_t>(r)], 3e-5, 2e-2,
               "gradient " + std::to_string(r));
}

/// Compares gradients of attention ops on rows of q, k and v.
void expectGradientsOfRows(const Setting &setting, DType data, bool inOrder) {
  DeviceRun forward("attention_qkv", data, setting.model);
  forward.fill(forward.call().in[0], 40, 2.0);
  apply(setting, forward.call(), 1);
  Results host = forward.onHost();
  DeviceRun backward("attention_qkv_bwd", data, setting.model);
  Call &call = backward.call();
  backward.fill(call.in[0], 50, 1.0);
  backward.fill(call.in[1], 40, 2.0);
  for (int r = 0; r < 2; ++r)
    std::memcpy(call.in[2 + r].data, host[static_cast<size_t>(r)].data(),
                host[static_cast<size_t>(r)].size());
  apply(setting, call, 4);
  if (!inOrder)
    backward.inAnyOrder();
  Results want = backward.onHost(), got = backward.onDevice(inOrder);
  ASSERT_EQ(got.size(), 1u);
  if (!setting.seesOneKey())
    expectNear(call.out[0], got[0], want[0], 3e-5, 2e-2, "gradient");
}

TEST_P(CudaAttention, AgreesWithTheHost) {
  SKIP_WITHOUT_GPU();
  const Setting &setting = kSettings[GetParam() / 3];
  DType data = kDataTypes[GetParam() % 3];
  DeviceRun forward("attention", data, setting.model);
  for (int i = 0; i < 3; ++i)
    forward.fill(forward.call().in[i], 40 + i, 2.0);
  apply(setting, forward.call(), 3);
  // Both sum bf16 products for scores; only fused kernels round probabilities.
  forward.compare(1e-5, 6e-3);
  expectGradients(setting, data, true);
}

/// Attention on rows of q, k and v, whether or not a kernel separates the heads first.
TEST_P(CudaAttention, OfCommonRowsAgreesWithTheHost) {
  SKIP_WITHOUT_GPU();
  const Setting &setting = kSettings[GetParam() / 3];
  DType data = kDataTypes[GetParam() % 3];
  DeviceRun forward("attention_qkv", data, setting.model);
  forward.fill(forward.call().in[0], 40, 2.0);
  apply(setting, forward.call(), 1);
  forward.compare(1e-5, 6e-3);
  expectGradientsOfRows(setting, data, true);
}

/// Gradients of queries added in any order, the default of runs that do not require equal bits.
TEST_P(CudaAttention, NondeterministicGradientsAgreeToo) {
  SKIP_WITHOUT_GPU();
  const Setting &setting = kSettings[GetParam() / 3];
  DType data = kDataTypes[GetParam() % 3];
  expectGradients(setting, data, false);
  expectGradientsOfRows(setting, data, false);
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaAttention,
                         testing::Range(0, 3 * static_cast<int>(std::size(kSettings))));

/// Attention of 16 bits on CUDA cores is reported once, as soon as a plan is bound, with the reason
/// why cuDNN does not compute it. What tensor cores compute is not reported.
TEST(CudaAttentionFallback, IsToldOfBf16AndOfItAlone) {
  ReportList reports;
  cuda::ContextOptions options;
  options.emit = reports.sink();
  cuda::Context context(options);
  const Kernel *kernel = findCudaKernel("attention");
  ASSERT_NE(kernel, nullptr);
  auto reported = [&](DType type, auto change) {
    Call call;
    call.context = &context;
    for (int i = 0; i < 3; ++i)
      call.in[i] = {nullptr, type, 4, false, {1, 64, 4, 64}};
    call.out[0] = {nullptr, type, 3, false, {1, 64, 256}};
    call.attrs.causal = true;
    change(call.attrs);
    kernel->workspaceBytes(call);
    return reports.take();
  };
  EXPECT_TRUE(reported(DType::F32, [](Attrs &attrs) { attrs.p = 0.1; }).empty());
  EXPECT_TRUE(reported(DType::BF16, [](Attrs &attrs) { attrs.p = 0.1; }).empty());
  EXPECT_TRUE(reported(DType::F16, [](Attrs &attrs) { attrs.reset_mask = true; }).empty());
  EXPECT_TRUE(reported(DType::BF16, [](Attrs &attrs) { attrs.chunk = 16; }).empty());
  std::vector<Report> warnings = reported(DType::BF16, [](Attrs &attrs) {
    attrs.reset_mask = true, attrs.causal = false;
  });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].id, "attention-on-cuda-cores");
  EXPECT_TRUE(context.gpu().cudnn == 0 || warnings[0].text.ends_with("documents"))
      << warnings[0].text;
}

/// The fallback is also reported for slices given only by positions, and for slices with windows.
TEST(CudaAttentionFallback, IsToldOfSlices) {
  ReportList reports;
  cuda::ContextOptions options;
  options.emit = reports.sink();
  cuda::Context context(options);
  Call call;
  call.context = &context;
  for (int i = 0; i < 3; ++i)
    call.in[i] = {nullptr, DType::BF16, 4, false, {1, 64, 4, 64}};
  call.out[0] = {nullptr, DType::BF16, 3, false, {1, 64, 256}};
  call.out[1] = {nullptr, DType::F32, 3, false, {1, 4, 64}};
  call.attrs.causal = true;
  for (const char *why : {"positions that only operands have", "a window in slices of sequences"}) {
    findCudaKernel("attention_part")->workspaceBytes(call);
    std::vector<Report> warnings = reports.take();
    ASSERT_EQ(warnings.size(), 1u) << why;
    EXPECT_TRUE(context.gpu().cudnn == 0 || warnings[0].text.ends_with(why)) << warnings[0].text;
    call.attrs.slices = call.groupSize = 2, call.attrs.window = 16;
  }
}

/// Shapes without a kernel are refused without a device, also for slices of sequences.
TEST(CudaAttentionFallback, RefusesValuesOfTooManyChannels) {
  for (int64_t values : {128, 264}) {
    Call call;
    call.inCount = 8, call.outCount = 2;
    for (int i = 0; i < 3; ++i)
      call.in[i] = {nullptr, DType::F32, 4, false, {1, 64, 4, i < 2 ? 192 : values}};
    for (int i = 3; i < 7; ++i)
      call.in[i] = {nullptr, DType::I32, 2, false, {1, 64}};
    call.in[7] = {nullptr, DType::I64, 1, false, {1}};
    call.out[0] = {nullptr, DType::F32, 3, false, {1, 64, 4 * values}};
    call.out[1] = {nullptr, DType::F32, 3, false, {1, 4, 64}};
    call.attrs.causal = true;
    call.attrs.slices = call.groupSize = 2;
    EXPECT_EQ(findCudaKernel("attention_part")->accepts(call) != nullptr, values > 256);
    call.in[4] = call.in[7];
    call.inCount = 5;
    call.attrs.slices = 0, call.groupSize = 1;
    EXPECT_EQ(findCudaKernel("attention")->accepts(call) != nullptr, values > 256);
  }
}

/// Long rows with many tiles of keys, like those of models.
TEST(CudaAttentionTypical, GradientsAgreeEitherWay) {
  SKIP_WITHOUT_GPU();
  const Setting setting = {{1, 2048, 8, 2, 128, 8, 8}};
  for (bool deterministic : {true, false})
    for (DType data : {DType::BF16, DType::F16})
      expectGradientsOfRows(setting, data, deterministic);
}

/// Documents as in packs, chunks as in Llama 4 and soft caps as in Gemma 2, on Hopper's tensor
/// cores. Documents of 23 positions cross every border of tiles; odd lengths end inside a tile.
TEST(CudaAttentionTypical, DocumentsChunksAndCapsAgreeToo) {
  SKIP_WITHOUT_GPU();
  Setting documents = {{2, 515, 8, 2, 128, 8, 8}, true, true}, chunks = documents, caps = documents;
  documents.model.channels = 64;
  chunks.chunk = 17, chunks.window = 15;
  caps.documents = caps.causal = false, caps.softCap = 5;
  for (const Setting &setting : {documents, chunks, caps})
    for (DType data : {DType::BF16, DType::F16})
      for (bool inOrder : {true, false}) {
        DeviceRun forward("attention", data, setting.model);
        for (int i = 0; i < 3; ++i)
          forward.fill(forward.call().in[i], 40 + i, 2.0);
        apply(setting, forward.call(), 3);
        forward.compare(1e-5, 6e-3);
        expectGradients(setting, data, inOrder);
        expectGradientsOfRows(setting, data, inOrder);
      }
}

/// Windows as in gpt-oss, and values as in DeepSeek and Moonlight, also with documents and dropout.
TEST(CudaAttentionTypical, WindowsAndOtherValuesAgreeToo) {
  SKIP_WITHOUT_GPU();
  Setting window = {{1, 1024, 16, 2, 64, 8, 8}};
  window.window = 127;
  const Setting latent = {{2, 515, 4, 4, 192, 8, 8, 128}};
  Setting documents = latent, dropout = latent, wide = {{2, 70, 4, 2, 32, 8, 8, 80}, true, true};
  documents.documents = true, dropout.p = 0.1;
  for (const Setting &setting : {window, latent, documents, dropout, wide})
    for (DType data : kDataTypes) {
      DeviceRun forward("attention", data, setting.model);
      for (int i = 0; i < 3; ++i)
        forward.fill(forward.call().in[i], 40 + i, 2.0);
      apply(setting, forward.call(), 3);
      forward.compare(1e-5, 6e-3);
      for (bool deterministic : {true, false})
        expectGradients(setting, data, deterministic);
    }
}

} // namespace
} // namespace shardc::kernels::test
