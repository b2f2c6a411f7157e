// Compares predicted scratch with cuDNN 9.19's on an H200: `shardc-cuda-bench --workspaces`,
// 2026-11.
#include <gtest/gtest.h>

#include "compiler/predict/Scratch.h"
#include "runtime/base/Float8.h"

namespace shardc::predict {
namespace {

const Device &kGpu = device(Gpu::H200);

struct Row {
  int64_t batch, positions, heads, groups, channels;
  int64_t anyOrder, inOrder; ///< bytes
};
constexpr Row kAttentionBwd[] = {
    {1, 1024, 12, 12, 64, 3195200, 25215296},      {16, 1024, 12, 12, 64, 51118400, 403439936},
    {64, 1024, 12, 12, 64, 204472640, 1613758784}, {1, 512, 16, 8, 48, 3178816, 9994560},
    {1, 2048, 16, 4, 128, 33685824, 151126336},    {1, 2048, 32, 8, 128, 67371328, 302252352},
    {1, 4096, 32, 8, 128, 134742336, 1141375296},  {1, 8192, 32, 8, 128, 269484352, 4430233920},
    {2, 8192, 32, 8, 128, 538968384, 8860467520},  {1, 8192, 32, 32, 128, 135266624, 4296016192},
    {1, 8192, 32, 8, 64, 135266624, 4363125056},   {1, 16384, 16, 8, 128, 269484352, 8725201216},
    {1, 1000, 32, 8, 128, 32896320, 83621184},     {1, 130, 32, 8, 128, 4276800, 5292608}};

plan::Segment attentionBwd(const Row &row, DType dtype) {
  plan::Segment segment;
  plan::Op &op = segment.ops.emplace_back();
  op.kind = plan::OpKind::AttentionBwd;
  auto add = [&](int64_t heads) {
    op.operands.push_back(static_cast<plan::ValueId>(segment.values.size()));
    segment.values.emplace_back().type =
        plan::Type::of(dtype, {row.batch, row.positions, heads, row.channels});
  };
  for (int64_t heads : {row.heads, row.heads, row.groups, row.groups})
    add(heads);
  return segment;
}

TEST(Scratch, OfAttentionsGradientIsWhatCudnnAsksFor) {
  for (const Row &row : kAttentionBwd) {
    plan::Segment segment = attentionBwd(row, DType::BF16);
    SCOPED_TRACE(testing::Message() << row.batch << " of " << row.positions << " positions, "
                                    << row.heads << " heads of " << row.channels);
    EXPECT_EQ(scratchOf(kGpu, segment, segment.ops[0], false), row.anyOrder);
    EXPECT_EQ(scratchOf(kGpu, segment, segment.ops[0], true), row.inOrder);
  }
}

/// Without cuDNN, the scratch is one sum per row of queries.
TEST(Scratch, OfHandWrittenAttentionIsSmall) {
  plan::Segment segment = attentionBwd(kAttentionBwd[0], DType::F32);
  EXPECT_EQ(scratchOf(kGpu, segment, segment.ops[0], true), 1024 * 12 * 4);
  plan::Segment dropping = attentionBwd(kAttentionBwd[0], DType::BF16);
  dropping.ops[0].set(plan::AttrKey::p, 0.1);
  EXPECT_EQ(scratchOf(kGpu, dropping, dropping.ops[0], true), 1024 * 12 * 4);
}

/// Without cuDNN, the scratch has separate queries, keys and values, and their gradients.
TEST(Scratch, OfAttentionOnCudaCoresOnRowsHoldsTheirParts) {
  constexpr int64_t kRows = 1024 * 3 * 12 * 64 * 4; // bytes
  plan::Segment segment, wide;
  for (int i = 0; i < 2; ++i) {
    segment.values.emplace_back().type = plan::Type::of(DType::BF16, {1, 1024, 3 * 12 * 64});
    wide.values.emplace_back().type = plan::Type::of(DType::F32, {1, 1024, 3 * 12 * 64});
  }
  plan::Op op;
  op.kind = plan::OpKind::AttentionQkv;
  op.set(plan::AttrKey::num_heads, int64_t{12}).set(plan::AttrKey::num_groups, int64_t{12});
  op.set(plan::AttrKey::head_dim, int64_t{64});
  op.operands = {0};
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), 0) << "cuDNN reads them where they lie";
  op.set(plan::AttrKey::p, 0.1);
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), 0) << "and so do the kernels by mma.sync";
  EXPECT_EQ(scratchOf(kGpu, wide, op, false), kRows);
  op.kind = plan::OpKind::AttentionQkvBwd;
  op.operands = {0, 1};
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), 1024 * 12 * 4);
  EXPECT_EQ(scratchOf(kGpu, wide, op, false), 2 * kRows + 1024 * 12 * 4);
}

/// Codes in blocks of 128 along the summed dimension, scales, and the order of rows. In gradients,
/// each run begins a new block.
TEST(Scratch, OfFactorsIn8BitsIsThatOfTheirCodes) {
  plan::Segment segment;
  for (plan::Type type :
       {plan::Type::of(DType::BF16, {1024, 200}), plan::Type::of(DType::BF16, {4, 384, 200}),
        plan::Type::of(DType::I32, {1, 4}), plan::Type::of(DType::BF16, {1024, 384}),
        plan::Type::of(DType::F32, {4, 200, 384})})
    segment.values.emplace_back().type = type;
  plan::Op op;
  op.kind = plan::OpKind::GroupedMatMul;
  op.operands = {0, 1, 2}, op.results = {3};
  op.set(plan::AttrKey::fp8_recipe, static_cast<int64_t>(Fp8Factors::Tensorwise));
  constexpr int64_t kCodes = (1024 + 4 * 384) * 256;
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), kCodes + 1024 * 4);
  for (plan::OpKind kind : {plan::OpKind::GroupedMatMulScaled, plan::OpKind::GroupedMatMul}) {
    op.kind = kind; // 8-bit weights are reordered along the summed dimension too
    op.set(plan::AttrKey::fp8_recipe, static_cast<int64_t>(Fp8Factors::Delayed));
    EXPECT_EQ(scratchOf(kGpu, segment, op, false), kCodes + 1024 * 4);
  }
  op.set(plan::AttrKey::fp8_recipe, static_cast<int64_t>(Fp8Factors::Blockwise));
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), kCodes + 1024 * 256 / 32 + 1024 * 4);
  op.kind = plan::OpKind::GroupedMatMulBwd;
  op.operands = {0, 3, 2}, op.results = {4};
  constexpr int64_t kRows = 1024 + 4 * 128;
  EXPECT_EQ(scratchOf(kGpu, segment, op, false), (200 + 384) * kRows * 33 / 32 + kRows * 4);
}

TEST(Scratch, IsSharedByTheOpsOfAStream) {
  plan::Role role;
  for (const Row &row : {kAttentionBwd[0], kAttentionBwd[1]})
    role.segments.push_back(attentionBwd(row, DType::BF16));
  EXPECT_EQ(workspacesOf(kGpu, role, true), kAttentionBwd[1].inOrder);
}

} // namespace
} // namespace shardc::predict
