// Compares every CUDA kernel with the host's on the shapes of makeCase: minimal, a model's, odd,
// one with long odd rows, and one token's. Then cases beyond those shapes: accumulation, padding,
// bad data, other attributes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/Queue.h"
#include "kernels/cuda/Registry.h"
#include "runtime/base/NewtonSchulz.h"
#include "runtime/base/Remainder.h"
#include "runtime/base/StepState.h"
#include "test/kernels/Harness.h"
#include "test/kernels/cuda/DeviceRun.h"

namespace shardc::kernels::test {
namespace {

constexpr bench::Model kOddModel = {3, 67, 6, 2, 40, 353, 1003};
constexpr bench::Model kWideModel = {1, 33, 80, 8, 128, 1024, 2048};
constexpr bench::Model kTokenModel = {1, 1, 10, 2, 128, 1400, 1003}; ///< its products have one row

struct Row {
  std::string_view op, dtypes;
};

void PrintTo(const Row &row, std::ostream *out) { *out << row.op; }

constexpr Row kRows[] = {
#define CUDA_KERNEL(enumerator, op, family, dtypes) {op, dtypes},
#include "kernels/Kernels.def"
};

struct Tolerances {
  double f32, bf16;
};

/// Allowed L2 distance from the host's result, divided by the L2 norm of that result. Sums over
/// thousands of terms in another order differ more. Logits of bf16 models are rounded to bf16 here,
/// but remain fp32 on the host.
Tolerances tolerancesOf(std::string_view op) {
  static const std::map<std::string_view, Tolerances> kOthers = {
      {"matmul", {1e-5, 4e-3}},
      {"matmul_add", {1e-5, 4e-3}},
      {"grouped_matmul", {1e-5, 4e-3}},
      {"grouped_matmul_scaled", {2e-4, 4e-3}},
      {"grouped_matmul_bwd", {1e-5, 4e-3}},
      {"grouped_matmul_bwd_squares", {6e-4, 4e-3}}, // squares are of results before rounding
      {"grouped_bias_bwd", {1e-5, 4e-3}},
      {"matmul_gelu", {1e-5, 4e-3}},
      {"matmul_gelu_bwd", {1e-5, 6e-3}},
      {"matmul_scaled", {1e-3, 4e-3}},
      {"attention_qkv", {1e-5, 6e-3}},
      {"lm_loss", {5e-3, 5e-3}},
      {"lm_loss_grad", {1e-2, 1e-2}},
      {"cross_entropy", {1e-5, 1e-5}},
      {"cross_entropy_bwd", {1e-5, 5e-3}},
      {"attention", {1e-5, 6e-3}},
      {"rmsnorm_bwd", {1e-5, 4e-3}},
      {"layernorm_bwd", {1e-5, 4e-3}},
      {"rmsnorm_part_bwd", {1e-5, 4e-3}},
      {"reduce_rows", {1e-5, 4e-3}},
      {"gelu_bwd", {5e-6, 3e-3}},
      {"init_block", {1e-6, 3e-3}},
      // Products have bf16 factors on tensor cores.
      {"delta_rule", {3e-6, 1.5e-2}},
      {"delta_rule_bwd", {1.5e-2, 1.5e-2}},
      {"state_scan", {3e-6, 1.5e-2}},
      {"state_scan_bwd", {1.5e-2, 1.5e-2}},
      // Some rotated gradients are rounded differently before they are summed.
      {"merge_qkv_norm_rope", {6e-5, 4e-3}},
      {"muon", {1e-4, 3e-3}}, // bf16 products are rounded after sums in another order
      {"vocab_stats", {1e-5, 1e-5}},
      {"vocab_loss", {1e-5, 1e-5}},
  };
  auto at = kOthers.find(op);
  return at == kOthers.end() ? Tolerances{3e-6, 3e-3} : at->second;
}

/// Scales logits to about 1, as at the start of training. With larger ones, the test would only
/// compare rounding.
void scaleLogits(DeviceRun &run, std::string_view op) {
  Tensor &x = run.call().in[0];
  if (op.starts_with("lm_loss"))
    run.fill(x, 5, 3 / std::sqrt(static_cast<double>(x.cols())));
}

class Ops : public ::testing::TestWithParam<Row> {};

TEST_P(Ops, AgreeWithTheHost) {
  SKIP_WITHOUT_GPU();
  const Row &row = GetParam();
  if (row.op == "attention_bwd" || row.op == "attention_qkv_bwd")
    GTEST_SKIP() << "its operands must belong together: see AttentionTest.cpp";
  if (row.op.starts_with("attention_part"))
    GTEST_SKIP() << "its operands must belong together: see AttentionPartTest.cpp";
  Tolerances tolerances = tolerancesOf(row.op);
  for (const bench::Model &model :
       {bench::kTinyModel, bench::kSmallModel, kOddModel, kWideModel, kTokenModel})
    for (DType data : kDataTypes) {
      const bool needsRows =
          row.op == "join" || row.op == "roll"; // their case divides or moves rows
      if ((data != DType::F32 && row.dtypes == "fixed") || (needsRows && model.positions == 1))
        continue;
      SCOPED_TRACE(testing::Message() << dtypeName(data) << " hidden " << model.hidden());
      DeviceRun run(row.op, data, model);
      scaleLogits(run, row.op);
      if (data == DType::F32)
        run.call().attrs.products = static_cast<int64_t>(NsProducts::Highest);
      if (row.op == "dispatch" || row.op.starts_with("weighted_")) // these write only some rows
        for (int r = 0; r < run.call().outCount; ++r)
          run.keep(r);
      // Hopper's tensor cores sum 8-bit products with about 14 bits.
      bool isOf8Bits = row.op.ends_with("matmul_scaled");
      run.compare(data == DType::F32 && !isOf8Bits ? std::min(tolerances.f32, 2e-5)
                                                   : tolerances.f32,
                  tolerances.bf16);
    }
}

std::string nameOf(const testing::TestParamInfo<Row> &info) {
  std::string name(info.param.op);
  for (char &c : name)
    c = c == '.' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Cuda, Ops, testing::ValuesIn(kRows), nameOf);

TEST(CudaOps, EveryRowOfTheHostHasItsTwin) {
  for (std::string_view op : {
#define HOST_KERNEL(enumerator, op, family, dtypes) op,
#include "kernels/Kernels.def"
       })
    if (!op.ends_with("_again")) { // only steps of other ops, which have kernels
      EXPECT_NE(findCudaKernel(op), nullptr) << op;
    }
}

TEST(CudaOps, AccumulateOntoWhatIsThere) {
  SKIP_WITHOUT_GPU();
  const std::map<std::string_view, std::vector<int>> results = {{"add", {0}},
                                                                {"cast", {0}},
                                                                {"matmul", {0}},
                                                                {"matmul_scaled", {0}},
                                                                {"embedding_bwd", {0}},
                                                                {"embedding_shard_bwd", {0}},
                                                                {"combine_bwd", {0}},
                                                                {"expert_load", {0}},
                                                                {"tally", {0}},
                                                                {"grouped_bias_bwd", {0}},
                                                                {"grouped_matmul_bwd", {0}},
                                                                {"grouped_matmul_bwd_squares", {0}},
                                                                {"reduce_rows", {0}},
                                                                {"rmsnorm_bwd", {1}},
                                                                {"rmsnorm_part_bwd", {1}},
                                                                {"layernorm_bwd", {1, 2}},
                                                                {"short_conv_bwd", {1}},
                                                                {"lm_loss_grad", {2}}};
  for (auto &[op, which] : results)
    for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel})
      for (DType data : kDataTypes) {
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data));
        DeviceRun run(op, data, model);
        scaleLogits(run, op);
        for (int result : which)
          accumulate(run, result);
        Tolerances tolerances = tolerancesOf(op);
        run.compare(tolerances.f32, tolerances.bf16);
      }
}

TEST(CudaOps, MatmulMixesTypesAndOrientations) {
  SKIP_WITHOUT_GPU();
  for (DType a : kDataTypes)
    for (DType b : kDataTypes)
      for (DType c : kDataTypes)
        for (int variant = 0; variant < 16; ++variant) {
          bool transA = variant & 1, transB = variant & 2, accumulates = variant & 4;
          int64_t m = variant & 8 ? 96 : 21, n = variant & 8 ? 160 : 13, k = variant & 8 ? 64 : 35;
          SCOPED_TRACE(testing::Message()
                       << dtypeName(a) << dtypeName(b) << dtypeName(c) << ' ' << variant);
          DeviceRun run("matmul", DType::F32, bench::kTinyModel);
          Call &call = run.call();
          call.attrs.trans_a = transA, call.attrs.trans_b = transB;
          call.in[0].rank = call.in[1].rank = call.out[0].rank = 2;
          call.in[0].shape[0] = transA ? k : m, call.in[0].shape[1] = transA ? m : k;
          call.in[1].shape[0] = transB ? n : k, call.in[1].shape[1] = transB ? k : n;
          call.in[2].shape[0] = n;
          call.out[0].shape[0] = m, call.out[0].shape[1] = n;
          run.retype(call.in[0], a, true);
          run.retype(call.in[1], b, true);
          run.retype(call.in[2], variant & 1 ? c : b, true);
          run.retype(call.out[0], c, true);
          call.out[0].accumulate = accumulates;
          if (variant & 2)
            call.inCount = 2; // without a bias
          run.compare(1e-5, 4e-3);
        }
}

TEST(CudaOps, MatmulEndsInEitherGelu) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model model = {2, 128, 4, 4, 64, 1024, 512};
  for (std::string_view op : {"matmul_gelu", "matmul_gelu_bwd"})
    for (bool tanh : {false, true})
      for (bool hasBias : {false, true}) {
        DeviceRun run(op, hasBias ? DType::BF16 : DType::F16, model);
        run.call().attrs.tanh_approx = tanh;
        if (!hasBias && op == "matmul_gelu")
          run.call().inCount = 2;
        SCOPED_TRACE(testing::Message() << op << ' ' << tanh << hasBias);
        run.compare(1e-5, 6e-3);
      }
}

/// Ids of many rows: more rows than a tile, no rows, and runs that end at tile ends.
TEST(CudaOps, EmbeddingGradientsOfFrequentIds) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model models[] = {{2, 515, 1, 1, 67, 8, 12}, {3, 512, 1, 1, 128, 8, 1500}};
  for (int kind = 0; kind < 4; ++kind)
    for (int variant = 0; variant < 6; ++variant)
      for (DType data : kDataTypes) {
        bool ofShard = kind & 2;
        DeviceRun run(ofShard ? "embedding_shard_bwd" : "embedding_bwd", data, models[kind & 1]);
        Call &call = run.call();
        auto *ids = static_cast<int32_t *>(call.in[1].data);
        for (int64_t i = 0, rows = call.in[1].numel(); i < rows; ++i) {
          auto at = static_cast<int32_t>(i);
          const int32_t choices[] = {3,
                                     at / 32 % 11,
                                     at * 7 % 11,
                                     at < 700 ? 5 : at % 12,
                                     at % 40 == 0 ? -1 : at / 65 % 12,
                                     at / 31 % 12};
          ids[i] = choices[variant];
        }
        if (variant & 1) {
          run.fill(call.out[0], 77, 3.0);
          call.out[0].accumulate = true;
        }
        SCOPED_TRACE(testing::Message() << dtypeName(data) << ' ' << variant);
        run.compare(1e-5, 4e-3);
      }
}

/// Rows of several thousand columns that fit into shared memory, longer ones, and rows like those
/// of Llama 3, of which a part is read twice.
TEST(CudaOps, LossesOfLargeVocabularies) {
  SKIP_WITHOUT_GPU();
  for (int64_t vocabulary : {4104, 50304, 57352, 128256})
    for (int which = 0; which < 6; ++which) {
      const char *ops[] = {"cross_entropy", "lm_loss", "lm_loss_grad"};
      std::string_view op = ops[which / 2];
      bench::Model model = {1, 67, 2, 2, 32, 8, vocabulary};
      DeviceRun run(op, which % 2 ? DType::F16 : DType::BF16, model);
      scaleLogits(run, op);
      run.call().attrs.valid_cols = vocabulary - 47;
      run.call().attrs.chunk_rows = 64;
      SCOPED_TRACE(testing::Message() << op << ' ' << vocabulary);
      run.compare(op == "cross_entropy" ? 1e-5 : 1e-2, 1e-2);
    }
}

/// Chunks of columns that fit into registers, and longer ones; for one rank, and for a member.
TEST(CudaOps, LossesOfCappedLogits) {
  SKIP_WITHOUT_GPU();
  for (int64_t vocabulary : {515, 4104, 128256})
    for (std::string_view op :
         {"cross_entropy", "cross_entropy_bwd", "vocab_stats", "lm_loss", "lm_loss_grad"})
      for (DType data : kDataTypes) {
        bench::Model model = {1, 35, 2, 2, 32, 8, vocabulary};
        DeviceRun run(op, data, model);
        scaleLogits(run, op);
        run.call().attrs.valid_cols = vocabulary - 47;
        run.call().attrs.chunk_rows = 16;
        run.call().attrs.soft_cap = 1.5;
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << ' ' << vocabulary);
        run.compare(op.starts_with("lm") && data != DType::F32 ? 1e-2 : 1e-5, 1e-2);
      }
}

TEST(CudaOps, LmLossGradOfOtherTypes) {
  SKIP_WITHOUT_GPU();
  for (DType x : kDataTypes)
    for (DType w : kDataTypes)
      for (DType d : kDataTypes)
        for (int variant = 0; variant < 8; ++variant) {
          SCOPED_TRACE(testing::Message()
                       << dtypeName(x) << dtypeName(w) << dtypeName(d) << ' ' << variant);
          DeviceRun run("lm_loss_grad", DType::F32, bench::kSmallModel);
          Call &call = run.call();
          call.attrs.chunk_rows = variant & 1 ? 0 : 300;
          call.attrs.per_token = variant & 2;
          call.attrs.loss_scale = 0.25;
          run.retype(call.in[0], x, true);
          run.fill(call.in[0], 5, 0.2);
          run.retype(call.in[1], w, true);
          run.retype(call.out[1], d, false);
          run.retype(call.out[2], d, true);
          call.out[2].accumulate = variant & 4;
          run.compare(1e-2, 1e-2);
        }
}

TEST(CudaOps, NormsOfRowsBeyondABlock) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model longRows = {1, 5, 90, 90, 137, 8, 8}; // 12330 elements a row
  constexpr bench::Model longWhole = {1, 5, 96, 96, 128, 8, 8};
  constexpr bench::Model middle = {1, 35, 30, 30, 104, 8, 8}, wide = {2, 67, 32, 32, 128, 8, 8};
  for (std::string_view op :
       {"rmsnorm", "layernorm", "add_rmsnorm", "add_layernorm", "rmsnorm_part", "dot_rows",
        "rmsnorm_bwd", "layernorm_bwd", "rmsnorm_part_bwd"})
    for (const bench::Model &model : {longRows, longWhole, middle, wide})
      for (DType data : kDataTypes) {
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data));
        DeviceRun run(op, data, model);
        run.call().attrs.zero_centered = true;
        if (op == "rmsnorm_bwd" || op == "layernorm_bwd" || op == "dot_rows")
          --run.call().inCount; // without the gradient of a residual, or without a weight
        run.compare(1e-5, 4e-3);
      }
}

TEST(CudaOps, RotateInPartInNeighboursAndBack) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model model = {2, 301, 6, 3, 64, 8, 8};
  for (std::string_view op :
       {"rope", "split_qkv_rope", "merge_qkv_rope", "split_qkv_norm_rope", "merge_qkv_norm_rope"})
    for (int64_t dim : {2, 16, 32, 62, 64})
      for (bool neighbours : {false, true})
        for (bool inverse : {false, true}) {
          if (inverse && op != "rope")
            continue; // the others have no such attribute
          DeviceRun run(op, DType::F32, model);
          run.call().attrs.rotary_dim = dim;
          run.call().attrs.rotary_interleaved = neighbours;
          run.call().attrs.inverse = inverse;
          SCOPED_TRACE(testing::Message() << op << ' ' << dim << ' ' << neighbours << inverse);
          run.compare(5e-6);
        }
}

TEST(CudaOps, RotateByScaledFrequencies) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model model = {1, 700, 4, 2, 128, 8, 8};
  for (std::string_view op :
       {"rope", "split_qkv_rope", "merge_qkv_rope", "split_qkv_norm_rope", "merge_qkv_norm_rope"}) {
    DeviceRun run(op, DType::F32, model);
    run.call().attrs.rotary_dim = 128;
    run.call().attrs.rotary_base = 500'000;
    run.call().attrs.rotary_scaling = 8;
    SCOPED_TRACE(op);
    run.compare(2e-5);
  }
}

TEST(CudaOps, DropoutDrawsTheHostsMask) {
  SKIP_WITHOUT_GPU();
  for (auto [p, jitter] : {std::pair(0.0, 0.0), {0.1, 0.0}, {0.9, 0.0}, {1.0, 0.0}, {0.0, 0.3}}) {
    DeviceRun run("dropout", DType::F32, kOddModel);
    run.call().attrs.p = p, run.call().attrs.jitter = jitter;
    run.call().attrs.salt = 12345678901;
    auto *samples = static_cast<int64_t *>(run.call().in[1].data);
    samples[0] = 5, samples[1] = int64_t{1} << 40, samples[2] = 7;
    EXPECT_TRUE(run.onDevice() == run.onHost()) << p << ' ' << jitter;
  }
}

/// The second of four members computes its part. Some ids, labels and columns are outside its part.
TEST(CudaOps, MembersOfAGroupHaveTheirParts) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op :
       {"embedding", "embedding_bwd", "dropout", "attention", "cross_entropy_bwd", "vocab_stats"})
    for (int64_t validCols : {0, 1500, 4012})
      for (DType data : {DType::F32, DType::BF16}) {
        DeviceRun run(op, data, kOddModel);
        Call &call = run.call();
        call.index = 1, call.groupSize = 4;
        if (op == "dropout")
          --call.inCount; // the member's own positions only
        call.attrs.p = 0.25;
        call.attrs.valid_cols = validCols;
        for (int i = 0; i < call.inCount; ++i) // ids and labels of all members
          if (call.in[i].dtype == DType::I32)
            for (int64_t at = 0; at < call.in[i].numel(); ++at)
              static_cast<int32_t *>(call.in[i].data)[at] =
                  op == "attention" ? 0 : static_cast<int32_t>(at * 37 % 4020);
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << ' ' << validCols);
        Tolerances tolerances = tolerancesOf(op);
        run.compare(tolerances.f32, tolerances.bf16);
      }
}

TEST(CudaOps, MembersOfAGroupHaveTheirQueries) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model model = {1, 700, 8, 2, 128, 8, 8};
  for (std::string_view op : {"split_qkv", "split_qkv_rope", "merge_qkv", "merge_qkv_rope"})
    for (DType data : {DType::F32, DType::BF16})
      for (int64_t rotated : {64, 128}) {
        DeviceRun run(op, data, model);
        Call &call = run.call();
        call.attrs.rotary_dim = rotated;
        call.index = 1, call.groupSize = 2;
        kernels::Tensor &queries = op.starts_with("split") ? call.out[0] : call.in[0];
        queries.shape[2] /= 2;
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << ' ' << rotated);
        run.compare(2e-5, 1e-2);
      }
}

TEST(CudaOps, MembersOfAGroupTakeTheSinksOfTheirHeads) {
  SKIP_WITHOUT_GPU();
  constexpr bench::Model model = {2, 700, 8, 2, 64, 8, 8};
  for (std::string_view op : {"attention_sink", "attention_sink_bwd"})
    for (DType data : {DType::F32, DType::BF16}) {
      DeviceRun run(op, data, model);
      Call &call = run.call();
      call.index = 1, call.groupSize = 2;
      auto halve = [](kernels::Tensor &output, kernels::Tensor &statistics) {
        output.shape[2] /= 2, statistics.shape[1] /= 2;
      };
      if (op == "attention_sink") {
        halve(call.in[0], call.in[1]);
        halve(call.out[0], call.out[1]);
      } else {
        call.in[0].shape[2] /= 2;
        halve(call.in[1], call.in[2]);
      }
      SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data));
      run.compare(2e-5, 1e-2);
    }
}

TEST(CudaOps, StatisticsOfMembersWithoutValidColumns) {
  SKIP_WITHOUT_GPU();
  for (DType data : {DType::F32, DType::BF16}) {
    DeviceRun run("vocab_stats", data, bench::kSmallModel);
    run.call().attrs.valid_cols = 5; // only the first member's columns are valid
    run.compare(1e-6);
  }
}

TEST(CudaOps, PositionsMayBeLeftOut) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"rope", "split_qkv_rope", "merge_qkv_rope", "split_qkv_norm_rope",
                              "merge_qkv_norm_rope", "dropout"})
    for (DType data : {DType::F32, DType::BF16}) {
      DeviceRun run(op, data, kOddModel);
      --run.call().inCount;
      run.call().attrs.p = 0.25;
      SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data));
      run.compare(2e-5, 3e-3);
    }
}

TEST(CudaOps, CountsMayBeLeftOut) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"weighted_swiglu", "weighted_swiglu_bwd", "weighted_quick_geglu",
                              "weighted_quick_geglu_bwd"})
    for (const bench::Model &model : {bench::kTinyModel, bench::kSmallModel, kOddModel, kWideModel})
      for (DType data : kDataTypes) {
        DeviceRun run(op, data, model);
        --run.call().inCount;
        SCOPED_TRACE(testing::Message() << op << ' ' << dtypeName(data) << model.ffn);
        run.compare(3e-6, 3e-3);
      }
}

TEST(CudaOps, BadIdsAndLabelsBecomeNan) {
  SKIP_WITHOUT_GPU();
  const std::map<std::string_view, int> idsOf = {{"embedding", 0},       {"embedding_bwd", 1},
                                                 {"embedding_shard", 0}, {"embedding_shard_bwd", 1},
                                                 {"cross_entropy", 1},   {"cross_entropy_bwd", 2}};
  for (auto [op, ids] : idsOf) {
    DeviceRun run(op, DType::F32, bench::kSmallModel);
    auto *values = static_cast<int32_t *>(run.call().in[ids].data);
    values[3] = -1, values[9] = 512, values[10] = 1 << 30;
    SCOPED_TRACE(op);
    run.compare(1e-5);
  }
}

/// Three parameters with odd bounds and padding between them.
void makeRanges(DeviceRun &run, int64_t numel) {
  std::vector<ParamRange> &ranges = run.data().ranges;
  ranges.assign(3, ranges.front());
  ranges[0].begin = 3, ranges[0].end = 8;
  ranges[1].begin = 13, ranges[1].end = numel / 2 + 1;
  ranges[2].begin = numel / 2 + 9, ranges[2].end = numel - 5;
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].globalBegin = static_cast<int64_t>(1000001 * i + 1);
    ranges[i].key += i;
    ranges[i].lrMult = 0.5f * static_cast<float>(i + 1);
    ranges[i].wdMult = static_cast<float>(i);
    ranges[i].isDecoupled = i == 1;
  }
  ranges[1].init = ParamRange::Normal, ranges[2].init = ParamRange::Constant;
  ranges[2].initStd = 0.5;
  run.call().ranges = ranges.data();
  run.call().rangesCount = 3;
}

TEST(CudaOps, OptimizersKeepToTheirRanges) {
  SKIP_WITHOUT_GPU();
  const std::map<std::string_view, int> moments = {{"adamw", 2}, {"sgd", 0}, {"sgd_momentum", 1}};
  for (auto &[op, count] : moments)
    for (DType data : kDataTypes)
      for (int variant = 0; variant < 8; ++variant) {
        DeviceRun run(op, data, bench::kSmallModel);
        Call &call = run.call();
        makeRanges(run, call.in[0].numel());
        call.attrs.weight_decay = 0.1, call.attrs.momentum = 0.9;
        call.attrs.decoupled = variant & 1;
        auto *state = static_cast<StepState *>(call.in[2 + count].data);
        state->skip = variant & 2 ? 1 : 0;
        state->applied = 7, state->gradScale = 0.3f, state->lr = 0.01f;
        state->decoupledLr = 0.04f, state->weightDecay = 0.05f;
        if (variant & 4)
          run.retype(call.in[0], DType::BF16, true);
        for (int r = 0; r < call.outCount; ++r)
          run.keep(r); // padding must stay
        SCOPED_TRACE(testing::Message() << op << dtypeName(data) << variant);
        run.compare();
      }
}

/// Fills 16 bytes at a time if aligned, and nothing after the last element.
TEST(CudaOps, FillsEndWhereTheirResultDoes) {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kElements = 96;
  uint16_t *device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, kElements * sizeof *device), cudaSuccess);
  cuda::Context &context = testContext();
  cuda::Queue queue(context, nullptr);
  for (int64_t begin : {0, 1, 8})
    for (int64_t numel : {1, 7, 8, 15, 64, 71}) {
      ASSERT_EQ(cudaMemset(device, 0, kElements * sizeof *device), cudaSuccess);
      Call call;
      call.attrs.value = 1;
      call.outCount = 1;
      call.out[0].dtype = DType::BF16;
      call.out[0].rank = 1;
      call.out[0].shape[0] = numel;
      call.out[0].data = device + begin;
      call.stream = &queue;
      call.context = &context;
      findCudaKernel("fill")->run(call);
      EXPECT_FALSE(queue.takeError());
      uint16_t got[kElements];
      ASSERT_EQ(cudaMemcpy(got, device, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
      for (int64_t i = 0; i < kElements; ++i)
        EXPECT_EQ(got[i], i >= begin && i < begin + numel ? 0x3f80 : 0)
            << begin << " + " << numel << ": " << i;
    }
  cudaFree(device);
}

/// The sum of squares is as accurate as fp64, so that the norm does not depend on how shards are
/// divided, even if squares or their partial sums overflow or underflow f32.
TEST(CudaOps, SquaresAreSummedInDouble) {
  SKIP_WITHOUT_GPU();
  for (DType data : {DType::F32, DType::BF16, DType::F16})
    for (double scale : {1.0, 1e4, 1e25, 1e19, 1e-13, 1e-14, 1e-20, 1e-37}) {
      if (data == DType::F16 && (scale > 1e4 || scale < 1e-4))
        continue;
      DeviceRun run("sum_squares", data, bench::kSmallModel);
      run.fill(run.data().list[0], 3, scale);
      double got = 0, want = 0;
      std::memcpy(&got, run.onDevice()[0].data(), sizeof got);
      std::memcpy(&want, run.onHost()[0].data(), sizeof want);
      SCOPED_TRACE(testing::Message() << dtypeName(data) << ' ' << scale);
      EXPECT_TRUE(std::isfinite(got));
      EXPECT_NEAR(got, want, want * 1e-13);
    }
}

/// Sums of squares, alone and with shards, and more of them than fit into one launch.
TEST(CudaOps, SumsOfSquaresAreAdded) {
  SKIP_WITHOUT_GPU();
  for (int64_t sums : {1, 1000})
    for (bool isAlone : {false, true}) {
      DeviceRun run("sum_squares", DType::F32, bench::kSmallModel);
      std::vector<Tensor> list(run.data().list.begin(),
                               run.data().list.begin() + (isAlone ? 0 : 2));
      std::vector<int64_t> bounds(run.data().rangesOf.begin(),
                                  run.data().rangesOf.begin() + (isAlone ? 1 : 3));
      for (int64_t i = 0; i < sums; ++i) {
        Tensor &sum = list.emplace_back();
        sum.rank = 1, sum.shape[0] = 1;
        run.retype(sum, DType::F64, false);
        *static_cast<double *>(sum.data) = 1 + 1e-3 * static_cast<double>(i);
        bounds.push_back(bounds.back());
      }
      Call &call = run.call();
      call.list = list.data(), call.listCount = static_cast<int64_t>(list.size());
      call.rangesOf = bounds.data(), call.rangesCount = bounds.back();
      double got = 0, want = 0;
      std::memcpy(&got, run.onDevice()[0].data(), sizeof got);
      std::memcpy(&want, run.onHost()[0].data(), sizeof want);
      EXPECT_NEAR(got, want, want * 1e-13) << sums << isAlone;
    }
}

TEST(CudaOps, SquaresAreDividedByTheCopiesOfTheirBlock) {
  SKIP_WITHOUT_GPU();
  DeviceRun run("sum_squares", DType::F32, bench::kSmallModel);
  std::vector<Tensor> list(run.data().list.begin(), run.data().list.begin() + 2);
  std::vector<int64_t> bounds(run.data().rangesOf.begin(), run.data().rangesOf.begin() + 3);
  Tensor &sum = list.emplace_back();
  sum.rank = 1, sum.shape[0] = 1;
  run.retype(sum, DType::F64, false);
  *static_cast<double *>(sum.data) = 100;
  bounds.push_back(bounds.back());
  const int64_t copies[] = {2, 3, 4};
  Call &call = run.call();
  call.list = list.data(), call.listCount = 3;
  call.rangesOf = bounds.data(), call.rangesCount = bounds.back();
  double got[2], want = 0;
  for (int each = 0; each < 2; ++each) {
    call.copies = each == 0 ? nullptr : copies;
    std::memcpy(&got[each], run.onDevice()[0].data(), sizeof got[each]);
    std::memcpy(&want, run.onHost()[0].data(), sizeof want);
    EXPECT_NEAR(got[each], want, want * 1e-13);
  }
  EXPECT_LT(got[1], got[0] / 2);
}

/// The elements in an array of bytes.
template <typename T> std::vector<T> arrayOf(const std::vector<std::byte> &bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), bytes.size());
  return array;
}

/// Updates of halves have the same bits as updates of whole masters.
TEST(CudaOps, HalvesAreThoseOfWholeMasters) {
  SKIP_WITHOUT_GPU();
  for (int variant = 0; variant < 4; ++variant) {
    DeviceRun whole("adamw", DType::BF16, bench::kSmallModel),
        halves("adamw", DType::BF16, bench::kSmallModel);
    const int64_t n = whole.call().in[0].numel();
    for (DeviceRun *run : {&whole, &halves}) {
      makeRanges(*run, n);
      Call &call = run->call();
      call.attrs.weight_decay = 0.1;
      call.attrs.decoupled = variant & 1;
      auto *state = static_cast<StepState *>(call.in[4].data);
      state->skip = variant & 2 ? 1 : 0;
      state->applied = 7, state->gradScale = 0.3f, state->lr = 0.01f;
      for (int r = 0; r < 4; ++r)
        run->keep(r);
    }
    Call &call = halves.call();
    halves.retype(call.in[1], DType::U16, false);
    call.out[0] = call.in[1];
    call.in[5] = call.out[3];
    call.inCount = 6;
    auto *weights = static_cast<BF16 *>(call.in[5].data);
    auto *remainders = static_cast<uint16_t *>(call.in[1].data);
    for (int64_t i = 0; i < n; ++i) {
      MasterHalves each = splitMaster(static_cast<const float *>(whole.call().in[1].data)[i]);
      weights[i] = each.weight, remainders[i] = each.remainder;
    }
    Results want = whole.onDevice(), got = halves.onDevice();
    ASSERT_EQ(got.size(), 4u);
    std::vector<float> masters = arrayOf<float>(want[0]);
    std::vector<uint16_t> lower = arrayOf<uint16_t>(got[0]), upper = arrayOf<uint16_t>(got[3]);
    for (size_t i = 0; i < masters.size(); ++i) {
      MasterHalves each = splitMaster(masters[i]);
      ASSERT_EQ(lower[i], each.remainder) << variant << ' ' << i;
      ASSERT_EQ(upper[i], each.weight.bits) << variant << ' ' << i;
    }
    EXPECT_EQ(got[1], want[1]);
    EXPECT_EQ(got[2], want[2]);
  }
  DeviceRun whole("init_block", DType::F32, bench::kSmallModel),
      halves("init_block", DType::BF16, bench::kSmallModel);
  Call &call = halves.call();
  call.out[call.outCount++] = call.out[0];
  halves.retype(call.out[1], DType::U16, false);
  std::vector<float> values = arrayOf<float>(whole.onDevice()[0]);
  Results got = halves.onDevice();
  std::vector<uint16_t> lower = arrayOf<uint16_t>(got[1]), upper = arrayOf<uint16_t>(got[0]);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(joinMaster({upper[i]}, lower[i]), values[i]) << i;
}

TEST(CudaOps, ManyRangesTakeSeveralLaunches) {
  SKIP_WITHOUT_GPU();
  for (std::string_view op : {"sum_squares", "adamw"}) {
    DeviceRun run(op, DType::F32, bench::kSmallModel);
    Call &call = run.call();
    const Tensor &shard = op == "adamw" ? call.in[0] : call.list[0];
    std::vector<ParamRange> ranges(250);
    int64_t each = shard.numel() / 250;
    for (size_t i = 0; i < ranges.size(); ++i) {
      ranges[i].begin = static_cast<int64_t>(i) * each + 3;
      ranges[i].end = static_cast<int64_t>(i + 1) * each;
    }
    call.ranges = ranges.data(), call.rangesCount = 250;
    int64_t bounds[] = {0, 250, 250};
    if (call.rangesOf)
      call.rangesOf = bounds;
    for (int r = 0; r < call.outCount && op == "adamw"; ++r)
      run.keep(r);
    SCOPED_TRACE(op);
    run.compare();
  }
}

TEST(CudaOps, InitialValuesAreTheHosts) {
  SKIP_WITHOUT_GPU();
  for (DType data : kDataTypes)
    for (int64_t columns : {0, 1, 36, 37}) { // columns of rows of 1001
      DeviceRun run("init_block", data, bench::kSmallModel);
      makeRanges(run, run.call().out[0].numel());
      ParamRange &range = run.data().ranges[1];
      range.columns = columns, range.stride = columns > 0 ? 1001 : 0;
      range.end -= columns > 0 ? (range.end - range.begin) % columns : 0;
      run.compare(1e-6, 3e-3);
    }
}

TEST(CudaOps, LearningRatesOfEverySchedule) {
  SKIP_WITHOUT_GPU();
  for (int style = 0; style < 5; ++style)
    for (int finalStyle = 0; finalStyle < 4; ++finalStyle)
      for (int64_t applied : {0, 5, 10, 11, 60, 99, 100, 101}) {
        DeviceRun run("step.begin", DType::F32, bench::kTinyModel);
        Attrs &attrs = run.call().attrs;
        attrs.lr = 1e-3, attrs.min_lr = 1e-4, attrs.warmup_steps = 10, attrs.decay_steps = 100;
        attrs.wsd_decay_steps = 40, attrs.decay_style = style, attrs.wsd_decay_style = finalStyle;
        auto *state = static_cast<StepState *>(run.call().in[0].data);
        attrs.step_samples = applied % 2 == 0 ? 0 : 4; // counts updates or samples
        (attrs.step_samples > 0 ? state->samples : state->applied) = applied;
        run.keep(0);
        Results got = run.onDevice(), want = run.onHost();
        StepState a, b;
        std::memcpy(&a, got[0].data(), sizeof a);
        std::memcpy(&b, want[0].data(), sizeof b);
        EXPECT_NEAR(a.lr, b.lr, 1e-9) << style << ' ' << finalStyle << ' ' << applied;
        EXPECT_EQ(a.step, b.step);
      }
}

TEST(CudaOps, StepsFinishAsOnTheHost) {
  SKIP_WITHOUT_GPU();
  for (double squares : {0.0, 4.0, 1e300 * 1e300, -1.0})
    for (int variant = 0; variant < 8; ++variant) {
      DeviceRun run("step.finish", DType::F32, bench::kTinyModel);
      Call &call = run.call();
      call.attrs.clip = variant & 1 ? 1.0 : 0.0;
      call.attrs.per_token = variant & 2;
      call.attrs.norm_replicated = variant & 4;
      auto *partial = static_cast<double *>(call.in[1].data);
      partial[0] = squares, partial[1] = 30.0, partial[2] = 12.0, partial[3] = variant & 1;
      *static_cast<double *>(call.in[2].data) = squares;
      run.keep(0);
      Results got = run.onDevice(), want = run.onHost();
      StepState a, b;
      std::memcpy(&a, got[0].data(), sizeof a);
      std::memcpy(&b, want[0].data(), sizeof b);
      EXPECT_EQ(a.applied, b.applied);
      EXPECT_EQ(a.halt, b.halt);
      EXPECT_EQ(a.nonfinite, b.nonfinite);
      EXPECT_EQ(a.stop, b.stop);
      EXPECT_DOUBLE_EQ(a.loss, b.loss);
      if (!b.nonfinite) {
        EXPECT_FLOAT_EQ(a.gradNorm, b.gradNorm);
        EXPECT_FLOAT_EQ(a.gradScale, b.gradScale);
      }
    }
}

} // namespace
} // namespace shardc::kernels::test
