#include "kernels/bench/AttentionCases.h"
#include "kernels/bench/CaseBuilder.h"
#include "kernels/bench/GatedCases.h"
#include "kernels/bench/GroupedCases.h"
#include "kernels/bench/HeadCases.h"
#include "kernels/bench/OptimizerCases.h"
#include "kernels/bench/RouterCases.h"
#include "runtime/base/Float8.h"
#include "runtime/base/StepState.h"

#include <cmath>

namespace shardc::kernels::bench {
namespace {

void makeBatchLoad(Builder &b) {
  const Model &m = b.model;
  b.attrs().slots = 3;
  b.ids({3, 6 * m.rows() + 2 * m.batch}, m.vocabulary);
  for (DType dtype : {DType::I32, DType::I32, DType::F32, DType::I32, DType::I32})
    b.to(dtype, {m.batch, m.positions});
  b.to(DType::I64, {m.batch}).to(DType::I32, {m.batch, m.positions});
}

void makeEmbedding(Builder &b) {
  const Model &m = b.model;
  b.ids({m.batch, m.positions}, m.vocabulary).data({m.vocabulary, m.hidden()});
  b.toData({m.batch, m.positions, m.hidden()});
}

void makeEmbeddingBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.hidden()}).ids({m.batch, m.positions}, m.vocabulary);
  b.toFloats({m.vocabulary, m.hidden()});
}

/// Adds the second half of a table as the shard's range. Returns the shard's size in elements,
/// which includes a row of padding.
int64_t addHalfTable(Builder &b) {
  const Model &m = b.model;
  int64_t first = m.vocabulary / 2, rows = m.vocabulary - first;
  b.addRange(rows * m.hidden(), first * m.hidden());
  return (rows + 1) * m.hidden();
}

void makeEmbeddingShard(Builder &b) {
  const Model &m = b.model;
  b.attrs().table_rows = m.vocabulary;
  b.ids({m.batch, m.positions}, m.vocabulary).data({addHalfTable(b)});
  b.toData({m.batch, m.positions, m.hidden()});
}

void makeEmbeddingShardBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().scale = 0.25;
  b.data({m.batch, m.positions, m.hidden()}).ids({m.batch, m.positions}, m.vocabulary);
  b.toFloats({addHalfTable(b)});
}

void makeMatMul(Builder &b) {
  const Model &m = b.model;
  b.attrs().trans_b = true;
  b.data({m.batch, m.positions, m.hidden()}).data({m.ffn, m.hidden()}).data({m.ffn});
  b.toData({m.batch, m.positions, m.ffn}).flops(m.rows(), m.ffn, m.hidden());
}

void makeMatMulGelu(Builder &b) {
  const Model &m = b.model;
  b.attrs().tanh_approx = true;
  makeMatMul(b);
  b.toData({m.batch, m.positions, m.ffn});
}

/// A product followed by the gradient of GELU.
void makeMatMulGeluBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().tanh_approx = true;
  b.data({m.rows(), m.hidden()}).data({m.hidden(), m.ffn}).data({m.rows(), m.ffn});
  b.toData({m.rows(), m.ffn}).flops(m.rows(), m.ffn, m.hidden());
}

void makeMatMulScaled(Builder &b) {
  const Model &m = b.model;
  b.bytes8({m.batch, m.positions, m.hidden()}).bytes8({m.ffn, m.hidden()}).ones({1}).ones({1});
  b.data({m.ffn}).toData({m.batch, m.positions, m.ffn}).flops(m.rows(), m.ffn, m.hidden());
}

void makeAmax(Builder &b) { b.data({b.model.batch, b.model.positions, b.model.ffn}).toFloats({1}); }

void makeQuantize(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.ffn}).ones({8});
  b.to(DType::F8E4M3, {m.batch, m.positions, m.ffn}).toFloats({1});
  b.to(DType::F8E4M3, {m.ffn, m.rows()});
}

void makeQuantizeDelayed(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.ffn}).ones({8}).ones({8});
  b.to(DType::F8E4M3, {m.batch, m.positions, m.ffn}).toFloats({1}).update(2);
  b.to(DType::F8E4M3, {m.ffn, m.rows()});
}

/// Adds the operands of a norm. giveNorm() adds its results without y.
template <bool kCentered, bool kAdds> void takeNorm(Builder &b) {
  const Model &m = b.model;
  for (int i = 0; i < (kAdds ? 2 : 1); ++i)
    b.data({m.rows(), m.hidden()});
  for (int i = 0; i < (kCentered ? 2 : 1); ++i)
    b.data({m.hidden()});
  b.attrs().eps = 1e-5;
}
template <bool kCentered, bool kAdds> void giveNorm(Builder &b) {
  const Model &m = b.model;
  if (kAdds)
    b.toData({m.rows(), m.hidden()});
  for (int i = 0; i < (kCentered ? 2 : 1); ++i)
    b.toFloats({m.rows()});
}

template <bool kCentered, bool kAdds> void makeNormQuantizeDelayed(Builder &b) {
  const Model &m = b.model;
  takeNorm<kCentered, kAdds>(b);
  b.ones({8}).ones({8}).to(DType::F8E4M3, {m.rows(), m.hidden()}).toFloats({1});
  giveNorm<kCentered, kAdds>(b.update(3 + int{kCentered} + int{kAdds}));
}

template <bool kCentered, bool kAdds> void makeNormAmax(Builder &b) {
  takeNorm<kCentered, kAdds>(b);
  giveNorm<kCentered, kAdds>(b);
  b.toFloats({1});
}

/// Adds results of 8-bit numbers with the scales of their blocks of 1 by 128.
void giveBlocks(Builder &b, int64_t rows, int64_t cols) {
  Extents scales = scalesOf(ScaleBlocks::Rows128, {rows, cols});
  b.to(DType::F8E4M3, {rows, cols}).toFloats({scales.rows, scales.cols});
}

template <bool kCentered, bool kAdds> void makeNormQuantizeBlocks(Builder &b) {
  const Model &m = b.model;
  takeNorm<kCentered, kAdds>(b);
  giveBlocks(b, m.rows(), m.hidden());
  giveNorm<kCentered, kAdds>(b);
}

/// Adds amax operands: expected and recorded amaxes if kDelayed, otherwise one amax.
template <bool kDelayed> void takeAmaxes(Builder &b) {
  b.ones({8});
  if (kDelayed)
    b.ones({8});
}

template <bool kDelayed> void makeRmsNormAgainQuantize(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.hidden()}).ones({m.rows()});
  takeAmaxes<kDelayed>(b);
  b.to(DType::F8E4M3, {m.rows(), m.hidden()}).toFloats({1});
  if (kDelayed)
    b.update(4);
  b.to(DType::F8E4M3, {m.hidden(), m.rows()});
}

void makeLayerNormAgainQuantize(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.hidden()}).data({m.hidden()});
  b.ones({m.rows()}).ones({m.rows()}).ones({8});
  b.to(DType::F8E4M3, {m.rows(), m.hidden()}).toFloats({1});
  b.to(DType::F8E4M3, {m.hidden(), m.rows()});
}

template <bool kDelayed> void makeSwiGluQuantize(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), 2 * m.ffn});
  takeAmaxes<kDelayed>(b);
  b.to(DType::F8E4M3, {m.rows(), m.ffn}).toFloats({1});
  if (kDelayed)
    b.update(2);
  b.to(DType::F8E4M3, {m.ffn, m.rows()});
}

void makeSwiGluAmax(Builder &b) { b.data({b.model.rows(), 2 * b.model.ffn}).toFloats({1}); }

void makeSwiGluQuantizeBlocks(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), 2 * m.ffn});
  giveBlocks(b, m.rows(), m.ffn);
}

/// Adds x, preceded by dy in the backward pass.
template <bool kBackward> void takeRows(Builder &b) {
  for (int i = 0; i < (kBackward ? 2 : 1); ++i)
    b.data({b.model.rows(), b.model.ffn});
}

template <bool kBackward, bool kDelayed> void makeSquaredReluQuantize(Builder &b) {
  const Model &m = b.model;
  takeRows<kBackward>(b);
  takeAmaxes<kDelayed>(b);
  b.to(DType::F8E4M3, {m.rows(), m.ffn}).toFloats({1});
  if (kDelayed)
    b.update(kBackward ? 3 : 2);
  b.to(DType::F8E4M3, {m.ffn, m.rows()});
}

template <bool kBackward> void makeSquaredReluAmax(Builder &b) {
  takeRows<kBackward>(b);
  b.toFloats({1});
}

void makeSquaredReluQuantizeBlocks(Builder &b) {
  takeRows<false>(b);
  giveBlocks(b, b.model.rows(), b.model.ffn);
}

template <bool kDelayed> void makeSwiGluBwdQuantize(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), 2 * m.ffn});
  takeAmaxes<kDelayed>(b);
  b.to(DType::F8E4M3, {m.rows(), 2 * m.ffn}).toFloats({1});
  if (kDelayed)
    b.update(3);
  b.to(DType::F8E4M3, {2 * m.ffn, m.rows()});
  b.to(DType::F8E4M3, {m.ffn, m.rows()}).toFloats({1});
  b.attrs().y_slot = 1;
}

void makeSwiGluBwdAmax(Builder &b) {
  b.data({b.model.rows(), b.model.ffn}).data({b.model.rows(), 2 * b.model.ffn}).toFloats({2});
}

void makeRmsNormAgainQuantizeBlocks(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.hidden()}).ones({m.rows()});
  giveBlocks(b, m.hidden(), m.rows());
}

/// Rounds the number of columns up, so that rows consist of whole blocks.
void makeSwiGluBwdQuantizeBlocks(Builder &b) {
  int64_t width = blockOf(ScaleBlocks::Rows128).cols;
  int64_t rows = b.model.rows(), cols = (b.model.ffn + width - 1) / width * width;
  b.data({rows, cols}).data({rows, 2 * cols});
  giveBlocks(b, rows, 2 * cols);
  giveBlocks(b, 2 * cols, rows);
  giveBlocks(b, cols, rows);
}

void makeAmaxUpdate(Builder &b) {
  b.ones({1024, 384}).ones({384}).state().update(0).update(1).toFloats({384});
  b.attrs().interval = 1;
}

void makeAmaxShard(Builder &b) {
  int64_t n = b.model.ffn * b.model.hidden();
  b.floats({n}).ones({8}).update(1).addRange(n);
}

void makeQuantizeShard(Builder &b) {
  int64_t n = b.model.ffn * b.model.hidden();
  b.floats({n}).ones({8}).to(DType::F8E4M3, {n}).addRange(n);
}

void makeWeightScales(Builder &b) { b.ones({128}).toFloats({128, 4}); }

void makeQuantizeBlocks(Builder &b) {
  const Model &m = b.model;
  Extents scales = scalesOf(ScaleBlocks::Rows128, {m.rows(), m.ffn});
  b.data({m.batch, m.positions, m.ffn});
  b.to(DType::F8E4M3, {m.batch, m.positions, m.ffn}).toFloats({scales.rows, scales.cols});
}

void makeQuantizeBlocksTransposed(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn});
  giveBlocks(b, m.ffn, m.rows());
  b.attrs().transposed = true;
}

void makeBiasAdd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.ffn}).toData({m.rows(), m.ffn});
}

void makeAdd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.rows(), m.hidden()}).toData({m.rows(), m.hidden()});
}

void makeGelu(Builder &b) {
  b.data({b.model.rows(), b.model.ffn}).toData({b.model.rows(), b.model.ffn});
}

void makeGeluBwd(Builder &b) {
  b.data({b.model.rows(), b.model.ffn});
  makeGelu(b);
}

/// rmsnorm and layernorm, their fusions with an add, and their gradients.
template <bool kCentered, bool kAdds> void makeNorm(Builder &b) {
  const Model &m = b.model;
  takeNorm<kCentered, kAdds>(b);
  for (int i = 0; i < (kAdds ? 2 : 1); ++i)
    b.toData({m.rows(), m.hidden()});
  for (int i = 0; i < (kCentered ? 2 : 1); ++i)
    b.toFloats({m.rows()});
}

template <bool kCentered> void makeNormBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.rows(), m.hidden()}).data({m.hidden()});
  for (int i = 0; i < (kCentered ? 2 : 1); ++i)
    b.floats({m.rows()});
  b.data({m.rows(), m.hidden()}).toData({m.rows(), m.hidden()});
  for (int i = 0; i < (kCentered ? 2 : 1); ++i)
    b.toFloats({m.hidden()});
  if (!kCentered)
    b.toData({m.rows(), m.hidden()});
  b.attrs().eps = 1e-5;
}

void makeRmsNormDx(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).data({m.rows(), m.hidden()}).data({m.hidden()}).floats({m.rows()});
  b.data({m.rows(), m.hidden()}).toData({m.rows(), m.hidden()}).toData({m.rows(), m.hidden()});
  b.attrs().eps = 1e-5;
}

void makeDropout(Builder &b) {
  const Model &m = b.model;
  b.attrs().p = 0.1;
  b.data({m.batch, m.positions, m.hidden()}).samples().ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.hidden()});
}

template <bool kRotated> void makeSplit(Builder &b) {
  const Model &m = b.model;
  b.attrs().rotary_dim = m.channels;
  b.data({m.batch, m.positions, m.qkv()});
  if (kRotated)
    b.ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.heads, m.channels});
  for (int i = 0; i < 2; ++i)
    b.toData({m.batch, m.positions, m.groups, m.channels});
}

template <bool kRotated> void makeMerge(Builder &b) {
  const Model &m = b.model;
  b.attrs().rotary_dim = m.channels;
  b.data({m.batch, m.positions, m.heads, m.channels});
  for (int i = 0; i < 2; ++i)
    b.data({m.batch, m.positions, m.groups, m.channels});
  if (kRotated)
    b.ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.qkv()});
}

void makeRope(Builder &b) {
  const Model &m = b.model;
  b.attrs().rotary_dim = m.channels;
  b.data({m.batch, m.positions, m.heads, m.channels}).ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.heads, m.channels});
}

/// Half of a key's channels are rotated. Values have as many channels as the other half.
void makeLatentHeads(Builder &b) {
  const Model &m = b.model;
  int64_t half = m.channels / 2;
  b.attrs().rotary_dim = half;
  b.attrs().rotary_interleaved = true;
  b.data({m.batch, m.positions, m.heads * m.channels})
      .data({m.batch, m.positions, m.heads * m.channels});
  b.data({m.batch, m.positions, half}).ids({m.batch, m.positions}, m.positions);
  for (int i = 0; i < 2; ++i)
    b.toData({m.batch, m.positions, m.heads, m.channels});
  b.toData({m.batch, m.positions, m.heads, half});
}

void makeLatentHeadsBwd(Builder &b) {
  const Model &m = b.model;
  int64_t half = m.channels / 2;
  b.attrs().rotary_dim = half;
  b.attrs().rotary_interleaved = true;
  for (int i = 0; i < 2; ++i)
    b.data({m.batch, m.positions, m.heads, m.channels});
  b.data({m.batch, m.positions, m.heads, half}).ids({m.batch, m.positions}, m.positions);
  for (int i = 0; i < 2; ++i)
    b.toData({m.batch, m.positions, m.heads * m.channels});
  b.toData({m.batch, m.positions, half});
}

void makeSplitColumns(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.ffn + m.hidden()});
  b.toData({m.batch, m.positions, m.ffn}).toData({m.batch, m.positions, m.hidden()});
}

void makeTranspose(Builder &b) {
  const Model &m = b.model;
  b.attrs().outer = m.rows(), b.attrs().inner = m.groups;
  b.data({m.batch, m.positions, m.hidden()}).toData({m.groups, m.rows(), m.hidden() / m.groups});
}

void makeMergeSlices(Builder &b) {
  const Model &m = b.model;
  b.attrs().outer = m.batch, b.attrs().inner = 2;
  b.data({2, m.batch, m.positions, m.hidden()}).toData({m.batch, 2 * m.positions, m.hidden()});
}

void makeJoin(Builder &b) {
  const Model &m = b.model;
  b.listed({m.rows(), m.hidden()}).listed({m.rows() / 2, m.hidden()});
  b.toData({m.rows() + m.rows() / 2, m.hidden()});
}

void makeCrossEntropy(Builder &b) {
  const Model &m = b.model;
  b.attrs().valid_cols = m.vocabulary - 1;
  b.data({m.rows(), m.vocabulary}).ids({m.rows()}, m.vocabulary - 1).ones({m.rows()});
  b.toFloats({m.rows()}).toFloats({m.rows()});
}

void makeCrossEntropyBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().valid_cols = m.vocabulary - 1;
  b.data({m.rows(), m.vocabulary}).ones({m.rows()}).ids({m.rows()}, m.vocabulary - 1);
  b.ones({m.rows()}).ones({1}).state().toData({m.rows(), m.vocabulary});
}

/// The call of the second of two members.
void makeVocabStats(Builder &b) {
  const Model &m = b.model;
  b.member(1, 2).attrs().valid_cols = 2 * m.vocabulary - 1;
  b.data({m.rows(), m.vocabulary}).ids({m.rows()}, 2 * m.vocabulary - 1).toFloats({3, m.rows()});
}

void makeVocabLoss(Builder &b) {
  int64_t rows = b.model.rows();
  b.ones({6, rows}).ones({rows}).toFloats({rows}).toFloats({rows});
}

void makeLmLoss(Builder &b) {
  const Model &m = b.model;
  b.attrs().valid_cols = m.vocabulary - 1;
  b.attrs().chunk_rows = 128;
  b.data({m.rows(), m.hidden()}).data({m.vocabulary, m.hidden()});
  b.ids({m.rows()}, m.vocabulary - 1).ones({m.rows()}).toFloats({m.rows()});
  b.flops(m.rows(), m.vocabulary, m.hidden());
}

void makeLmLossGrad(Builder &b) {
  const Model &m = b.model;
  makeLmLoss(b);
  b.ones({1}).state().toData({m.rows(), m.hidden()}).toFloats({m.vocabulary, m.hidden()});
  b.flops(m.rows(), m.vocabulary, m.hidden(), 2);
}

void makeLosses(Builder &b) {
  b.state().ones({b.model.batch, b.model.positions}).ones({1}).update(0);
}

void makeReduceRows(Builder &b) { b.data({b.model.rows(), b.model.ffn}).toFloats({b.model.ffn}); }
void makeCast(Builder &b) {
  b.floats({b.model.rows(), b.model.ffn}).toData({b.model.rows(), b.model.ffn});
}
void makeFill(Builder &b) { b.toData({b.model.rows(), b.model.ffn}); }
void makeStateOnly(Builder &b) { b.state().update(0); }
void makeStepReset(Builder &b) { b.to(DType::U8, {sizeof(StepState)}); }
void makeStepPack(Builder &b) {
  b.state().doubles({1}).ids({1}, 1).to(DType::F64, {kStepPartialCount});
}
void makeStepFinish(Builder &b) { b.state().doubles({kStepPartialCount}).doubles({1}).update(0); }
void makeEvalPack(Builder &b) { b.state().to(DType::F64, {kEvalPartialCount}); }
void makeEvalFinish(Builder &b) { b.state().doubles({kEvalPartialCount}).update(0); }

void makeSumSquares(Builder &b) {
  b.listed({2 * b.model.ffn * b.model.hidden()}).listed({b.model.hidden()});
  b.to(DType::F64, {1});
}

struct Maker {
  std::string_view op;
  void (*make)(Builder &);
};

constexpr Maker kMakers[] = {
    {"batch.load", makeBatchLoad},
    {"embedding", makeEmbedding},
    {"matmul", makeMatMul},
    {"matmul_add", makeMatMulAdd},
    {"dequantize", makeDequantize},
    {"dequantize_nested", makeDequantizeNested},
    {"matmul_gelu", makeMatMulGelu},
    {"matmul_scaled", makeMatMulScaled},
    {"amax", makeAmax},
    {"quantize", makeQuantize},
    {"quantize_blocks", makeQuantizeBlocks},
    {"quantize_blocks, transposed", makeQuantizeBlocksTransposed},
    {"quantize_delayed", makeQuantizeDelayed},
    {"rmsnorm.quantize_delayed", makeNormQuantizeDelayed<false, false>},
    {"add_rmsnorm.quantize_delayed", makeNormQuantizeDelayed<false, true>},
    {"layernorm.quantize_delayed", makeNormQuantizeDelayed<true, false>},
    {"add_layernorm.quantize_delayed", makeNormQuantizeDelayed<true, true>},
    {"rmsnorm_again.quantize_delayed", makeRmsNormAgainQuantize<true>},
    {"swiglu.quantize_delayed", makeSwiGluQuantize<true>},
    {"swiglu_bwd.quantize_delayed", makeSwiGluBwdQuantize<true>},
    {"rmsnorm.amax", makeNormAmax<false, false>},
    {"add_rmsnorm.amax", makeNormAmax<false, true>},
    {"layernorm.amax", makeNormAmax<true, false>},
    {"add_layernorm.amax", makeNormAmax<true, true>},
    {"rmsnorm_again.quantize", makeRmsNormAgainQuantize<false>},
    {"layernorm_again.quantize", makeLayerNormAgainQuantize},
    {"swiglu.amax", makeSwiGluAmax},
    {"swiglu.quantize", makeSwiGluQuantize<false>},
    {"swiglu_bwd.amax", makeSwiGluBwdAmax},
    {"swiglu_bwd.quantize", makeSwiGluBwdQuantize<false>},
    {"rmsnorm.quantize_blocks", makeNormQuantizeBlocks<false, false>},
    {"add_rmsnorm.quantize_blocks", makeNormQuantizeBlocks<false, true>},
    {"layernorm.quantize_blocks", makeNormQuantizeBlocks<true, false>},
    {"add_layernorm.quantize_blocks", makeNormQuantizeBlocks<true, true>},
    {"rmsnorm_again.quantize_blocks", makeRmsNormAgainQuantizeBlocks},
    {"swiglu.quantize_blocks", makeSwiGluQuantizeBlocks},
    {"swiglu_bwd.quantize_blocks", makeSwiGluBwdQuantizeBlocks},
    {"geglu.quantize_delayed", makeSwiGluQuantize<true>},
    {"geglu.amax", makeSwiGluAmax},
    {"geglu.quantize", makeSwiGluQuantize<false>},
    {"geglu.quantize_blocks", makeSwiGluQuantizeBlocks},
    {"geglu_bwd.quantize_delayed", makeSwiGluBwdQuantize<true>},
    {"geglu_bwd.amax", makeSwiGluBwdAmax},
    {"geglu_bwd.quantize", makeSwiGluBwdQuantize<false>},
    {"geglu_bwd.quantize_blocks", makeSwiGluBwdQuantizeBlocks},
    {"squared_relu.quantize_delayed", makeSquaredReluQuantize<false, true>},
    {"squared_relu.amax", makeSquaredReluAmax<false>},
    {"squared_relu.quantize", makeSquaredReluQuantize<false, false>},
    {"squared_relu.quantize_blocks", makeSquaredReluQuantizeBlocks},
    {"squared_relu_bwd.quantize_delayed", makeSquaredReluQuantize<true, true>},
    {"squared_relu_bwd.amax", makeSquaredReluAmax<true>},
    {"squared_relu_bwd.quantize", makeSquaredReluQuantize<true, false>},
    {"amax.update", makeAmaxUpdate},
    {"amax_shard", makeAmaxShard},
    {"quantize_shard", makeQuantizeShard},
    {"weight_scales", makeWeightScales},
    {"bias_add", makeBiasAdd},
    {"add", makeAdd},
    {"gelu", makeGelu},
    {"squared_relu", makeGelu},
    {"swiglu", makeSwiGlu},
    {"geglu", makeSwiGlu},
    {"quick_geglu", makeQuickGeGlu},
    {"rmsnorm", makeNorm<false, false>},
    {"add_rmsnorm", makeNorm<false, true>},
    {"rmsnorm_part", makeRmsNormPart},
    {"l2norm", makeL2Norm},
    {"layernorm", makeNorm<true, false>},
    {"add_layernorm", makeNorm<true, true>},
    {"dropout", makeDropout},
    {"split_qkv", makeSplit<false>},
    {"rope", makeRope},
    {"scale_positions", makeScalePositions},
    {"split_qkv_rope", makeSplit<true>},
    {"split_qkv_norm_rope", makeSplitQkvNormRope},
    {"split_columns", makeSplitColumns},
    {"expand_parts", makeExpandParts},
    {"adapter_squares", makeAdapterSquares},
    {"scale_columns", makeScaleColumns},
    {"latent_heads", makeLatentHeads},
    {"attention", makeAttention},
    {"attention_qkv", makeAttentionQkv},
    {"attention_part", makeAttentionPart},
    {"attention_join", makeAttentionJoin},
    {"attention_sink", makeAttentionSink},
    {"transpose", makeTranspose},
    {"merge_slices", makeMergeSlices},
    {"join", makeJoin},
    {"roll", makeRoll},
    {"token_count", makeTokenCount},
    {"router_topk", makeRouterTopk},
    {"router_sinkhorn", makeRouterSinkhorn},
    {"router_topk_bwd", makeRouterTopkBwd},
    {"router_drop", makeRouterDrop},
    {"expert_load", makeExpertLoad},
    {"router_loss", makeRouterLoss},
    {"router_loss_bwd", makeRouterLossBwd},
    {"router_z_loss", makeRouterZLoss},
    {"router_z_loss_bwd", makeRouterZLossBwd},
    {"tally", makeTally},
    {"running_mean", makeRunningMean},
    {"expert_bias.update", makeExpertBiasUpdate},
    {"make_runs", makeMakeRuns},
    {"dispatch", makeDispatch},
    {"combine", makeCombine},
    {"combine_bwd", makeCombineBwd},
    {"weighted_swiglu", makeWeightedSwiGlu},
    {"weighted_swiglu_bwd", makeWeightedSwiGluBwd},
    {"weighted_quick_geglu", makeWeightedQuickGeGlu},
    {"weighted_quick_geglu_bwd", makeWeightedQuickGeGluBwd},
    {"scale_rows", makeScaleRows},
    {"dot_rows", makeDotRows},
    {"grouped_bias", makeGroupedBias},
    {"grouped_bias_bwd", makeGroupedBiasBwd},
    {"grouped_bias_dot", makeGroupedBiasDot},
    {"grouped_matmul", makeGroupedMatMul},
    {"grouped_matmul_bias", makeGroupedMatMulBias},
    {"grouped_matmul, delayed", makeGroupedMatMulDelayed},
    {"grouped_matmul_scaled", makeGroupedMatMulScaled},
    {"grouped_matmul_bwd", makeGroupedMatMulBwd},
    {"grouped_matmul_bwd_squares", makeGroupedMatMulBwdSquares},
    {"grouped_matmul_bwd, delayed", makeGroupedMatMulBwdDelayed},
    {"cross_entropy", makeCrossEntropy},
    {"vocab_stats", makeVocabStats},
    {"vocab_loss", makeVocabLoss},
    {"lm_loss", makeLmLoss},
    {"preference_loss", makePreferenceLoss},
    {"loss.add", makeLosses},
    {"eval.add", makeLosses},
    {"embedding_bwd", makeEmbeddingBwd},
    {"embedding_shard", makeEmbeddingShard},
    {"embedding_shard_bwd", makeEmbeddingShardBwd},
    {"reduce_rows", makeReduceRows},
    {"gelu_bwd", makeGeluBwd},
    {"matmul_gelu_bwd", makeMatMulGeluBwd},
    {"squared_relu_bwd", makeGeluBwd},
    {"swiglu_bwd", makeSwiGluBwd},
    {"geglu_bwd", makeSwiGluBwd},
    {"quick_geglu_bwd", makeQuickGeGluBwd},
    {"rmsnorm_bwd", makeNormBwd<false>},
    {"rmsnorm_dx", makeRmsNormDx},
    {"rmsnorm_part_bwd", makeRmsNormPartBwd},
    {"l2norm_bwd", makeL2NormBwd},
    {"layernorm_bwd", makeNormBwd<true>},
    {"merge_qkv", makeMerge<false>},
    {"merge_qkv_rope", makeMerge<true>},
    {"merge_qkv_norm_rope", makeMergeQkvNormRope},
    {"join_columns", makeJoinColumns},
    {"contract_parts", makeContractParts},
    {"scale_columns_bwd", makeScaleColumnsBwd},
    {"latent_heads_bwd", makeLatentHeadsBwd},
    {"attention_bwd", makeAttentionBwd},
    {"attention_qkv_bwd", makeAttentionQkvBwd},
    {"attention_part_bwd", makeAttentionPartBwd},
    {"attention_sink_bwd", makeAttentionSinkBwd},
    {"cross_entropy_bwd", makeCrossEntropyBwd},
    {"lm_loss_grad", makeLmLossGrad},
    {"cast", makeCast},
    {"fill", makeFill},
    {"step.begin", makeStateOnly},
    {"sum_squares", makeSumSquares},
    {"step.pack", makeStepPack},
    {"step.finish", makeStepFinish},
    {"eval.begin", makeStateOnly},
    {"eval.pack", makeEvalPack},
    {"eval.finish", makeEvalFinish},
    {"adamw", makeAdamW},
    {"adamw, halves", makeAdamWOfHalves},
    {"sgd", makeSgd},
    {"sgd_momentum", makeSgdMomentum},
    {"lion", makeLion},
    {"muon", makeMuon},
    {"muon, halves", makeMuonOfHalves},
    {"muon, layer", makeMuonOfLayer},
    {"muon, parts", makeMuonOfParts},
    {"muon, divided", makeMuonDivided},
    {"muon_update", makeMuonUpdate},
    {"muon_sums", makeMuonSums},
    {"muon_step", makeMuonStep},
    {"init_block", makeInitBlock},
    {"init_block, halves", makeInitBlockOfHalves},
    {"step.reset", makeStepReset},
};

} // namespace

std::unique_ptr<Case> makeCase(std::string_view op, DType data, const Model &model) {
  for (const Maker &maker : kMakers) {
    if (maker.op != op)
      continue;
    auto result = std::make_unique<Case>();
    result->rangesOf = {0};
    Builder builder(*result, data, model);
    maker.make(builder);
    Call &call = result->call;
    call.list = result->list.empty() ? nullptr : result->list.data();
    call.listCount = static_cast<int64_t>(result->list.size());
    call.ranges = result->ranges.empty() ? nullptr : result->ranges.data();
    call.rangesCount = static_cast<int64_t>(result->ranges.size());
    call.rangesOf = result->rangesOf.size() > 1 ? result->rangesOf.data() : nullptr;
    return result;
  }
  return nullptr;
}

} // namespace shardc::kernels::bench
