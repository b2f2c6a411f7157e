// Compares routers, and the ops that group rows by expert and bring them back, with the host's.
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Registry.h"
#include "runtime/base/Philox.h"
#include "runtime/base/Router.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

/// All score functions, with and without groups and a bias; some logits are equal, or NaN.
TEST(CudaRouter, ChoosesAsTheHost) {
  SKIP_WITHOUT_GPU();
  struct {
    int64_t rows, experts, topk, groups, groupTopk;
  } cases[] = {{1, 1, 1, 0, 0},   {100, 8, 2, 0, 0},   {77, 130, 8, 0, 0}, {50, 256, 8, 8, 4},
               {9, 64, 6, 16, 3}, {300, 60, 60, 0, 0}, {40, 384, 8, 1, 1}};
  for (auto [rows, experts, topk, groups, groupTopk] : cases)
    for (int64_t score = 0; score < 3; ++score)
      // Softmax: of all experts instead of the chosen ones; other functions: with a bias.
      for (bool other : {false, true}) {
        DeviceRun run("router_topk", DType::F32, bench::kTinyModel);
        Call &call = run.call();
        Attrs &attrs = call.attrs;
        attrs.topk = topk, attrs.expert_groups = groups, attrs.group_topk = groupTopk;
        attrs.score = score, attrs.pre_softmax = score == 0 && other, attrs.scale = 2.5;
        shape(run, call.in[0], DType::F32, {rows, experts});
        shape(run, call.in[1], DType::F32, {experts});
        call.inCount = score > 0 && other ? 2 : 1;
        shape(run, call.out[0], DType::I32, {rows, topk});
        shape(run, call.out[1], DType::F32, {rows, topk});
        auto *logits = static_cast<float *>(call.in[0].data);
        for (int64_t i = 0; i < rows * experts; ++i)
          logits[i] = i % 3 == 0 ? 0.25f : 9 * logits[i];
        if (rows > 20 && score == 1)
          setNan(call.in[0], 17 * experts + experts / 2);
        SCOPED_TRACE(testing::Message() << experts << ' ' << topk << ' ' << score << other);
        run.compare(2e-6);

        DeviceRun back("router_topk_bwd", DType::F32, bench::kTinyModel);
        Call &backward = back.call();
        backward.attrs = attrs;
        shape(back, backward.in[0], DType::F32, {rows, topk});
        shape(back, backward.in[1], DType::F32, {rows, experts});
        shape(back, backward.in[2], DType::I32, {rows, topk});
        shape(back, backward.out[0], DType::F32, {rows, experts});
        std::memcpy(backward.in[1].data, logits,
                    static_cast<size_t>(rows * experts) * sizeof(float));
        std::memcpy(backward.in[2].data, run.onHost()[0].data(),
                    static_cast<size_t>(rows * topk) * sizeof(int32_t));
        static_cast<int32_t *>(backward.in[2].data)[0] = -1; // no expert
        back.compare(2e-6);
      }
}

/// Logits that prefer the first experts by `lean`.
struct Balance {
  int64_t rows, experts, topk;
  float lean;
};

std::string nameOf(const Balance &balance) {
  return fmt::format("{}rows_{}of{}", balance.rows, balance.topk, balance.experts);
}
void PrintTo(const Balance &balance, std::ostream *out) { *out << nameOf(balance); }

/// One test per case, because sanitizers take minutes for some.
class CudaRouterBalances : public testing::TestWithParam<Balance> {};

/// Few steps: with fewer rows and experts than threads, with more, and with equal logits. Many
/// steps: up to the limit.
INSTANTIATE_TEST_SUITE_P(FewSteps, CudaRouterBalances,
                         testing::Values(Balance{1, 1, 1, 0}, Balance{3, 5, 2, 0},
                                         Balance{100, 8, 1, 0}, Balance{77, 130, 8, 0.05f}),
                         nameOfCase<Balance>);
INSTANTIATE_TEST_SUITE_P(ManySteps, CudaRouterBalances,
                         testing::Values(Balance{2000, 64, 6, 0}, Balance{300, 8, 2, 1.5f},
                                         Balance{4099, 256, 8, 0.1f}, Balance{64, 8, 2, 60}),
                         nameOfCase<Balance>);

/// Sinkhorn's choice, with and without NaN; equal bits in both runs.
TEST_P(CudaRouterBalances, AsTheHost) {
  SKIP_WITHOUT_GPU();
  const auto [rows, experts, topk, lean] = GetParam();
  for (bool hasNan : {false, true}) {
    DeviceRun run("router_sinkhorn", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    call.attrs.topk = topk, call.attrs.pre_softmax = true;
    call.attrs.score = topk == 1 ? kRouterSigmoid : kRouterSoftmax;
    shape(run, call.in[0], DType::F32, {rows, experts});
    shape(run, call.out[0], DType::I32, {rows, topk});
    shape(run, call.out[1], DType::F32, {rows, topk});
    auto *logits = static_cast<float *>(call.in[0].data);
    for (int64_t i = 0; i < rows * experts; ++i)
      logits[i] = 4 * logits[i] - lean * static_cast<float>(i % experts);
    if (hasNan)
      setNan(call.in[0], rows * experts / 2);
    SCOPED_TRACE(hasNan);
    run.compare(2e-6);
    EXPECT_TRUE(run.onDevice() == run.onDevice());
  }
}

/// Capacity for no, some and all rows; equal weights, some of them NaN; ids that are not experts.
TEST(CudaRouter, DropsAsTheHost) {
  SKIP_WITHOUT_GPU();
  for (double factor : {1e-9, 0.5, 1.0, 100.0})
    for (int64_t rows : {1, 300, 3000})
      for (bool byPosition : {false, true}) {
        DeviceRun run("router_drop", DType::F32, bench::kTinyModel);
        Call &call = run.call();
        call.attrs.experts = 7, call.attrs.capacity_factor = factor;
        call.attrs.by_position = byPosition;
        shape(run, call.in[0], DType::I32, {rows, 4});
        shape(run, call.in[1], DType::F32, {rows, 4});
        shape(run, call.out[0], DType::I32, {rows, 4});
        auto *weights = static_cast<float *>(call.in[1].data);
        for (int64_t i = 0; i < 4 * rows; ++i) {
          static_cast<int32_t *>(call.in[0].data)[i] = static_cast<int32_t>(i * i % 10) - 1;
          weights[i] = i % 3 == 0 ? 0.25f : i % 29 == 1 ? -0.0f : weights[i];
          if (i % 101 == 7)
            setNan(call.in[1], i);
        }
        SCOPED_TRACE(testing::Message() << factor << ' ' << rows << ' ' << byPosition);
        EXPECT_TRUE(run.onDevice() == run.onHost());
      }
}

/// The second of four members has rows of two parts, for each score function.
TEST(CudaRouter, MembersHaveTheirRowsOfParts) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"expert_load", "router_loss", "router_loss_bwd"})
    for (int64_t score = 0; score < 3; ++score) {
      DeviceRun run(op, DType::F32, bench::kSmallModel);
      Call &call = run.call();
      call.index = 1, call.groupSize = 4;
      call.attrs.score = score, call.attrs.loss_scale = 0.5;
      Tensor &load = op == "expert_load" ? call.out[0] : call.in[1];
      shape(run, load, DType::F32, {8, load.shape[1]});
      SCOPED_TRACE(testing::Message() << op << ' ' << score);
      run.compare(2e-6);
    }
}

/// A captured kernel reads the running microbatch's number.
TEST(CudaRouter, MeansAreOfTheMicrobatchesSoFar) {
  SKIP_WITHOUT_GPU();
  for (int64_t microbatch : {0, 1, 6}) {
    DeviceRun run("running_mean", DType::F32, bench::kSmallModel);
    run.call().microbatch = microbatch;
    SCOPED_TRACE(microbatch);
    run.compare(1e-7);
    Results want = run.onHost();
    const int64_t words[] = {3, microbatch, 7};
    int64_t *launch = nullptr;
    ASSERT_EQ(cudaMalloc(&launch, sizeof words), cudaSuccess);
    cudaMemcpy(launch, words, sizeof words, cudaMemcpyHostToDevice);
    run.call().microbatch = 99;
    run.call().launch = launch;
    EXPECT_TRUE(run.onDevice() == want);
    cudaFree(launch);
  }
}

/// Some ids are of no group; groups and slots that get all rows; slots with too little capacity.
TEST(CudaRuns, PlacesAreTheHosts) {
  SKIP_WITHOUT_GPU();
  struct {
    int64_t rows, choices, slots, runs, bound;
    int32_t ids; ///< number of different ids
  } cases[] = {{1, 1, 1, 1, 1, 1},           {5000, 8, 1, 128, 40000, 130},
               {5000, 2, 8, 16, 16000, 128}, {3000, 4, 4, 3, 6000, 2},
               {100, 6, 2, 700, 600, 1400},  {70000, 1, 1, 7, 70000, 7},
               {300, 3, 16, 1, 160, 20}};
  for (auto [rows, choices, slots, runs, bound, ids] : cases) {
    DeviceRun run("make_runs", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    call.attrs.bound = bound;
    shape(run, call.in[0], DType::I32, {rows, choices});
    shape(run, call.out[0], DType::I32, {slots, runs});
    shape(run, call.out[1], DType::I32, {rows, choices});
    for (int64_t i = 0; i < call.in[0].numel(); ++i)
      static_cast<int32_t *>(call.in[0].data)[i] =
          static_cast<int32_t>(uniformAt(9, static_cast<uint64_t>(i)) * (ids + 0.5)) -
          (i % 97 == 5);
    SCOPED_TRACE(testing::Message() << rows << ' ' << slots << ' ' << runs);
    EXPECT_TRUE(run.onDevice() == run.onHost());
  }
}

/// Rows without places, with one place and with many; weights in another type.
TEST(CudaRuns, RowsGoAndComeAsOnTheHost) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"dispatch", "combine", "combine_bwd"})
    for (int64_t choices : {1, 3, 8})
      for (int64_t cols : {8, 33, 1000, 2880})
        for (DType data : kDataTypes) {
          bool isBack = op == "combine_bwd";
          DeviceRun run(op, data, bench::kTinyModel);
          Call &call = run.call();
          Tensor &places = call.in[isBack ? 2 : 1];
          Tensor &x = op == "dispatch" ? call.in[0] : isBack ? call.in[1] : call.out[0];
          Tensor &y = op == "dispatch" ? call.out[0] : call.in[0];
          int64_t rows = 37, bound = rows * choices + 5;
          shape(run, x, data, {rows, cols});
          shape(run, y, data, {bound, cols});
          shape(run, places, DType::I32, {rows, choices});
          for (int64_t i = 0; i < places.numel(); ++i)
            static_cast<int32_t *>(places.data)[i] =
                static_cast<int32_t>(i % 11 == 4   ? -1
                                     : i % 11 == 7 ? bound + i
                                                   : bound - 1 - i);
          if (isBack)
            shape(run, call.out[0], data, {rows, choices});
          else
            shape(run, call.in[2], DType::F32, {rows, choices});
          if (op == "dispatch")
            run.keep(0);
          SCOPED_TRACE(testing::Message()
                       << op << ' ' << choices << ' ' << cols << dtypeName(data));
          run.compare(2e-6, 4e-3);
          if (isBack) {
            accumulate(run, 0);
            run.compare(2e-6, 4e-3);
          } else {
            --call.inCount; // no weights
            run.compare(2e-6, 4e-3);
          }
        }
}
} // namespace
} // namespace shardc::kernels::test
