// Compares CUDA kernels for 8-bit numbers with the host's: conversions and scales bitwise, products
// within the rounding of Hopper's sums.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "kernels/cuda/Registry.h"
#include "runtime/base/Float8.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

constexpr bench::Model kOddModel = {3, 67, 6, 2, 40, 353, 1003};
constexpr bench::Model kWideModel = {1, 33, 80, 8, 128, 1024, 2048};

/// Expects results with equal bytes.
void expectSameBytes(const Results &got, const Results &want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t r = 0; r < got.size(); ++r)
    EXPECT_TRUE(got[r] == want[r]) << "result " << r;
}

TEST(CudaQuantize, QuantizesToTheBit) {
  SKIP_WITHOUT_GPU();
  for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel, kOddModel, kWideModel})
    for (DType data : kDataTypes)
      for (DType type : {DType::F8E4M3, DType::F8E5M2})
        for (float amax : {1.0f, 0.37f, 0.0f, 1e-40f, INFINITY, NAN})
          for (int forms = 0; forms < 3; ++forms) { // 0: plain, 1: and transposed, 2: transposed
            SCOPED_TRACE(testing::Message() << dtypeName(data) << ' ' << dtypeName(type) << " amax "
                                            << amax << " forms " << forms);
            DeviceRun run("quantize", data, model);
            Call &call = run.call();
            std::memcpy(call.in[1].data, &amax, sizeof amax);
            run.retype(call.out[0], type, false);
            run.retype(call.out[2], type, false);
            if (forms == 2)
              call.out[0] = call.out[2];
            call.attrs.transposed = forms == 2;
            call.outCount = forms == 1 ? 3 : 2;
            expectSameBytes(run.onDevice(), run.onHost());
          }
}

TEST(CudaQuantize, AmaxSeesWhatIsNotFinite) {
  SKIP_WITHOUT_GPU();
  for (DType data : kDataTypes)
    for (int special = 0; special < 3; ++special) {
      DeviceRun run("amax", data, kOddModel);
      Tensor &x = run.call().in[0];
      run.fill(x, 4, 100);
      if (special > 0) {
        auto *last = static_cast<std::byte *>(x.data) + (x.numel() - 1) * dtypeBytes(data);
        float value = special == 1 ? INFINITY : NAN;
        uint16_t bits = data == DType::BF16 ? toBF16(value).bits : toF16(value).bits;
        if (data == DType::F32)
          std::memcpy(last, &value, sizeof value);
        else
          std::memcpy(last, &bits, sizeof bits);
      }
      expectSameBytes(run.onDevice(), run.onHost());
    }
}

/// Gives a tensor the shape of a matrix's scales, and memory.
void makeScales(DeviceRun &run, Tensor &scale, ScaleBlocks blocks, const Tensor &matrix) {
  Extents extents = scalesOf(blocks, {matrix.rows(), matrix.cols()});
  scale.rank = 2;
  scale.shape[0] = extents.rows, scale.shape[1] = extents.cols;
  run.retype(scale, blocks == ScaleBlocks::Rows32 ? DType::U8 : DType::F32,
             blocks != ScaleBlocks::Rows32);
}

/// Puts an infinity or NaN at the start of every third block of 64 elements. The codes of the other
/// blocks must not change.
void injectSpecials(Tensor &x) {
  for (int64_t i = 0; i < x.numel(); i += 3 * 64) {
    float value = i % 2 == 0 ? INFINITY : NAN;
    std::byte *at = static_cast<std::byte *>(x.data) + i * dtypeBytes(x.dtype);
    uint16_t bits = x.dtype == DType::BF16 ? toBF16(value).bits : toF16(value).bits;
    if (x.dtype == DType::F32)
      std::memcpy(at, &value, sizeof value);
    else
      std::memcpy(at, &bits, sizeof bits);
  }
}

TEST(CudaQuantize, QuantizesAndSeesToTheBit) {
  SKIP_WITHOUT_GPU();
  for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel, kOddModel, kWideModel})
    for (DType data : kDataTypes)
      for (DType type : {DType::F8E4M3, DType::F8E5M2})
        for (float amax : {1.0f, 0.37f, 0.0f})
          for (int variant = 0; variant < 6; ++variant) {
            int forms = variant % 3; // 0: plain, 1: and transposed, 2: transposed
            SCOPED_TRACE(testing::Message() << dtypeName(data) << ' ' << dtypeName(type) << " amax "
                                            << amax << " variant " << variant);
            DeviceRun run("quantize_delayed", data, model);
            Call &call = run.call();
            call.attrs.slot = 3;
            std::memcpy(static_cast<float *>(call.in[1].data) + 3, &amax, sizeof amax);
            run.fill(call.in[0], 5, 3.0);
            if (variant >= 3)
              injectSpecials(call.in[0]);
            run.retype(call.out[0], type, false);
            run.retype(call.out[3], type, false);
            if (forms == 2)
              call.out[0] = call.out[3];
            call.attrs.transposed = forms == 2;
            call.outCount = forms == 1 ? 4 : 3;
            expectSameBytes(run.onDevice(), run.onHost());
          }
}

TEST(CudaQuantize, UpdatesHistoriesToTheBit) {
  SKIP_WITHOUT_GPU();
  for (int variant = 0; variant < 8; ++variant) {
    DeviceRun run("amax.update", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    call.attrs.most_recent = variant & 1;
    call.attrs.margin = variant & 2 ? 3 : 0;
    for (int i = 0; i < 2; ++i) {
      run.fill(call.in[i], 7, 50.0);
      auto *numbers = static_cast<float *>(call.in[i].data);
      std::transform(numbers, numbers + call.in[i].numel(), numbers,
                     [](float number) { return std::max(number, 0.0f); });
      numbers[0] = variant & 4 ? NAN : INFINITY;
    }
    expectSameBytes(run.onDevice(), run.onHost());
  }
}

/// Divides a shard into `count` parameters with padding; all begin at whole chunks, or none does.
void makeRanges(DeviceRun &run, int64_t count, bool aligned) {
  Call &call = run.call();
  std::vector<ParamRange> &ranges = run.data().ranges;
  int64_t each = call.in[0].numel() / count / 8 * 8;
  ranges.resize(static_cast<size_t>(count), ranges[0]);
  for (int64_t i = 0; i < count; ++i) {
    ParamRange &range = ranges[static_cast<size_t>(i)];
    range.begin = i * each + (aligned ? 0 : 3);
    range.end = (i + 1) * each - 2;
    range.number = (i * 5 + 6) % 8;
  }
  call.ranges = ranges.data();
  call.rangesCount = count;
}

/// Calls test(run) for shards with few parameters, and with more than fit into one launch.
template <typename Test> void forEachShard(std::string_view op, Test test) {
  for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel, kOddModel})
    for (int64_t count : {2, 70})
      for (bool aligned : {false, true}) {
        if (count > 2 && model.ffn == bench::kTinyModel.ffn)
          continue;
        SCOPED_TRACE(testing::Message()
                     << "ffn " << model.ffn << " parameters " << count << " aligned " << aligned);
        DeviceRun run(op, DType::F32, model);
        makeRanges(run, count, aligned);
        test(run);
      }
}

TEST(CudaQuantize, FindsAmaxesOfShardsToTheBit) {
  SKIP_WITHOUT_GPU();
  for (float special : {0.0f, INFINITY, NAN})
    forEachShard("amax_shard", [&](DeviceRun &run) {
      Call &call = run.call();
      run.fill(call.in[0], 3, 100.0);
      auto *x = static_cast<float *>(call.in[0].data);
      x[call.ranges[0].end] = 1e9f; // padding
      if (special != 0)
        x[call.ranges[1].begin + 1] = special;
      static_cast<float *>(call.in[1].data)[6] = 99.999f; // another shard's amax
      expectSameBytes(run.onDevice(), run.onHost());
    });
}

TEST(CudaQuantize, QuantizesShardsToTheBit) {
  SKIP_WITHOUT_GPU();
  for (float amax : {2.0f, 0.37f, 0.0f, 1e-40f, INFINITY, NAN})
    forEachShard("quantize_shard", [&](DeviceRun &run) {
      run.keep(0); // padding must stay
      static_cast<float *>(run.call().in[1].data)[6] = amax;
      expectSameBytes(run.onDevice(), run.onHost());
    });
}

TEST(CudaQuantize, MakesScalesOfWeightsToTheBit) {
  SKIP_WITHOUT_GPU();
  DeviceRun run("weight_scales", DType::F32, bench::kTinyModel);
  Tensor &amax = run.call().in[0];
  run.fill(amax, 9, 5.0);
  auto *numbers = static_cast<float *>(amax.data);
  std::transform(numbers, numbers + amax.numel(), numbers, [](float x) { return std::abs(x); });
  numbers[0] = 0, numbers[1] = INFINITY, numbers[2] = NAN, numbers[3] = 1e-40f;
  expectSameBytes(run.onDevice(), run.onHost());
}

TEST(CudaQuantize, TurnsBytes) {
  SKIP_WITHOUT_GPU();
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                            {128, 64},
                            {131, 72},
                            {256, 4096},
                            {67, 353},
                            {1008, 16}}) {
    SCOPED_TRACE(testing::Message() << rows << " by " << cols);
    DeviceRun run("transpose", DType::F32, bench::kTinyModel);
    Call &call = run.call();
    Tensor &x = call.in[0], &t = call.out[0];
    call.attrs.outer = rows, call.attrs.inner = cols;
    x.rank = t.rank = 2;
    x.shape[0] = t.shape[1] = rows, x.shape[1] = t.shape[0] = cols;
    run.retype(x, DType::F8E4M3, false);
    run.retype(t, DType::F8E4M3, false);
    for (int64_t i = 0; i < x.numel(); ++i)
      static_cast<uint8_t *>(x.data)[i] = static_cast<uint8_t>(i * 7 + i / 251);
    expectSameBytes(run.onDevice(), run.onHost());
  }
}

TEST(CudaQuantize, MakesBlocksToTheBit) {
  SKIP_WITHOUT_GPU();
  for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel, kOddModel, kWideModel})
    for (DType data : kDataTypes)
      for (DType type : {DType::F8E4M3, DType::F8E5M2})
        for (ScaleBlocks blocks :
             {ScaleBlocks::Rows128, ScaleBlocks::Squares128, ScaleBlocks::Rows32})
          for (int variant = 0; variant < 8; ++variant) {
            bool transposed = variant & 1, isTiny = variant & 2, hasSpecials = variant & 4;
            SCOPED_TRACE(testing::Message()
                         << dtypeName(data) << ' ' << dtypeName(type) << " blocks "
                         << static_cast<int>(blocks) << " variant " << variant);
            DeviceRun run("quantize_blocks", data, model);
            Call &call = run.call();
            Tensor &x = call.in[0], &q = call.out[0];
            int64_t rows = x.rows(), cols = x.cols();
            run.fill(x, 11, isTiny ? 1e-38 : 3.0); // tiny numbers become 0 in f16
            if (hasSpecials)
              injectSpecials(x);
            q.rank = 2;
            q.shape[0] = transposed ? cols : rows, q.shape[1] = transposed ? rows : cols;
            run.retype(q, type, false);
            makeScales(run, call.out[1], blocks, q);
            call.attrs.transposed = transposed;
            expectSameBytes(run.onDevice(), run.onHost());
          }
}

TEST(CudaQuantize, ScaledProductsMixTypes) {
  SKIP_WITHOUT_GPU();
  for (const bench::Model &model : {kOddModel, bench::kSmallModel})
    // Which operand is e5m2: the first, the second, neither.
    for (int formats = 0; formats < 3; ++formats)
      for (DType out : kDataTypes)
        for (int variant = 0; variant < 8; ++variant) {
          DeviceRun run("matmul_scaled", out, model);
          Call &call = run.call();
          if (formats < 2)
            // Random codes are finite numbers in this type too.
            call.in[formats].dtype = DType::F8E5M2;
          float scales[2] = {0.5f, 3.0f};
          for (int i = 0; i < 2; ++i)
            std::memcpy(call.in[2 + i].data, &scales[i], sizeof scales[i]);
          if (variant & 1)
            call.inCount = 4;
          if (variant & 2)
            accumulate(run, 0);
          call.attrs.fast_accum = variant & 4;
          SCOPED_TRACE(testing::Message()
                       << dtypeName(out) << " formats " << formats << " variant " << variant);
          run.compare(5e-3, 8e-3);
        }
}

/// Three blocks along the sum: the library wants rows of four scales.
constexpr bench::Model kThreeBlocks = {1, 256, 6, 3, 64, 512, 1024};

/// The scales of a product's second operand, and its sizes.
struct ScaledCase {
  std::string_view name;
  ScaleBlocks second;
  bench::Model model;
};
void PrintTo(const ScaledCase &scaled, std::ostream *out) { *out << scaled.name; }

/// One test per case, because sanitizers take minutes for some.
class CudaProductsOfBlocks : public testing::TestWithParam<ScaledCase> {};
INSTANTIATE_TEST_SUITE_P(
    Scales, CudaProductsOfBlocks,
    testing::Values(ScaledCase{"squares_odd", ScaleBlocks::Squares128, kOddModel},
                    ScaledCase{"squares_small", ScaleBlocks::Squares128, bench::kSmallModel},
                    ScaledCase{"squares_three", ScaleBlocks::Squares128, kThreeBlocks},
                    ScaledCase{"squares_wide", ScaleBlocks::Squares128, kWideModel},
                    ScaledCase{"rows_odd", ScaleBlocks::Rows128, kOddModel},
                    ScaledCase{"rows_small", ScaleBlocks::Rows128, bench::kSmallModel},
                    ScaledCase{"rows_three", ScaleBlocks::Rows128, kThreeBlocks},
                    ScaledCase{"rows_wide", ScaleBlocks::Rows128, kWideModel}),
    [](const testing::TestParamInfo<ScaledCase> &info) { return std::string(info.param.name); });

TEST_P(CudaProductsOfBlocks, AreTheHosts) {
  SKIP_WITHOUT_GPU();
  const ScaledCase &scaled = GetParam();
  for (int formats = 0; formats < 3; ++formats)
    for (DType out : kDataTypes)
      for (int variant = 0; variant < 4; ++variant) {
        DeviceRun run("matmul_scaled", out, scaled.model);
        Call &call = run.call();
        if (formats < 2)
          call.in[formats].dtype = DType::F8E5M2;
        makeScales(run, call.in[2], ScaleBlocks::Rows128, call.in[0]);
        makeScales(run, call.in[3], scaled.second, call.in[1]);
        if (variant & 1)
          call.inCount = 4;
        if (variant & 2)
          accumulate(run, 0);
        SCOPED_TRACE(testing::Message()
                     << dtypeName(out) << " formats " << formats << " variant " << variant);
        run.compare(5e-3, 8e-3);
      }
}

TEST(CudaQuantize, RefusesProductsOfMicroscales) {
  DeviceRun run("matmul_scaled", DType::BF16, bench::kSmallModel);
  Call &call = run.call();
  makeScales(run, call.in[2], ScaleBlocks::Rows32, call.in[0]);
  makeScales(run, call.in[3], ScaleBlocks::Rows32, call.in[1]);
  EXPECT_STREQ(findCudaKernel("matmul_scaled")->accepts(call),
               "GPUs have no kernel for scales of e8m0 yet");
}

} // namespace
} // namespace shardc::kernels::test
