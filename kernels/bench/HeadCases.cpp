#include "kernels/bench/HeadCases.h"

namespace shardc::kernels::bench {

/// Documents have 7 and 9 positions alternately, fewer in short sequences. All tokens count in the
/// loss.
void makePreferenceLoss(Builder &b) {
  const Model &m = b.model;
  std::vector<int32_t> docs;
  const auto most = static_cast<size_t>(std::max<int64_t>(m.positions / 2, 1));
  for (size_t size = 7; std::ssize(docs) < m.positions; size = 16 - size)
    docs.insert(docs.end(), std::min(size, most), static_cast<int32_t>(docs.size()));
  docs.resize(static_cast<size_t>(m.positions));
  b.attrs().beta = 0.1;
  b.ones({m.rows()}).ones({m.batch, m.positions}).words({m.batch, m.positions}, docs);
  b.floats({m.batch, m.positions});
  b.toFloats({m.batch}).toFloats({m.rows()}).toFloats({1}).toFloats({m.batch, 8});
}

void makeScalePositions(Builder &b) {
  const Model &m = b.model;
  b.attrs().position_step = 1;
  b.attrs().position_slope = 0.1;
  b.data({m.batch, m.positions, m.heads, m.channels}).ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.heads, m.channels});
}

void makeRmsNormPart(Builder &b) {
  const Model &m = b.model;
  b.attrs().eps = 1e-5;
  b.data({m.rows(), m.hidden()}).data({m.hidden()}).ones({m.rows(), 1});
  b.toData({m.rows(), m.hidden()});
}

void makeRmsNormPartBwd(Builder &b) {
  const Model &m = b.model;
  b.attrs().eps = 1e-5;
  b.data({m.rows(), m.hidden()}).data({m.rows(), m.hidden()}).data({m.hidden()});
  b.ones({m.rows(), 1}).floats({m.rows(), 1});
  b.toData({m.rows(), m.hidden()}).toFloats({m.hidden()});
}

/// Each row is a head.
void makeL2Norm(Builder &b) {
  int64_t rows = b.model.batch * b.model.positions * b.model.heads, channels = b.model.channels;
  b.attrs().eps = 1e-5;
  b.data({rows, channels}).toData({rows, channels}).toFloats({rows});
}

void makeL2NormBwd(Builder &b) {
  int64_t rows = b.model.batch * b.model.positions * b.model.heads, channels = b.model.channels;
  b.data({rows, channels}).data({rows, channels}).floats({rows}).toData({rows, channels});
}

void makeSplitQkvNormRope(Builder &b) {
  const Model &m = b.model;
  b.attrs().rotary_dim = m.channels;
  b.attrs().eps = 1e-5;
  b.data({m.batch, m.positions, m.qkv()}).data({m.channels}).data({m.channels});
  b.ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.heads, m.channels});
  for (int i = 0; i < 2; ++i)
    b.toData({m.batch, m.positions, m.groups, m.channels});
  b.toFloats({m.batch, m.positions, m.heads}).toFloats({m.batch, m.positions, m.groups});
}

namespace {

/// Two groups of four units. Their first two units are one part; the next part has no columns.
void setParts(Attrs &attrs) {
  attrs.num_groups = 2, attrs.units = 4, attrs.first_units = 2, attrs.parts = 2, attrs.kept = 5;
}

} // namespace

void makeExpandParts(Builder &b) {
  setParts(b.attrs());
  b.data({8 * b.model.channels, b.model.groups});
  b.toData({8 * b.model.channels, 2 * b.model.groups});
}

/// The case has the weight of the MLP's first product, and an adapter whose rank is the number of
/// heads.
void makeAdapterSquares(Builder &b) {
  const Model &m = b.model;
  b.attrs().scale = 2;
  b.data({m.ffn, m.hidden()}).data({m.ffn, m.heads}).data({m.heads, m.hidden()});
  b.toFloats({m.ffn});
}

void makeScaleColumns(Builder &b) {
  const Model &m = b.model;
  setParts(b.attrs());
  int64_t columns = 8 * m.channels;
  b.data({m.batch, m.positions, columns}).data({columns}).ones({columns});
  b.toData({m.batch, m.positions, columns});
}

void makeScaleColumnsBwd(Builder &b) {
  const Model &m = b.model;
  setParts(b.attrs());
  int64_t columns = 8 * m.channels;
  b.data({m.batch, m.positions, columns}).data({m.batch, m.positions, columns});
  b.data({columns}).ones({columns});
  b.toData({m.batch, m.positions, columns}).toFloats({columns});
}

void makeMatMulAdd(Builder &b) {
  const Model &m = b.model;
  b.attrs().trans_b = true;
  b.data({m.batch, m.positions, m.hidden()}).data({m.ffn, m.hidden()});
  b.data({m.batch, m.positions, m.ffn}).data({m.ffn});
  b.update(2).flops(m.rows(), m.ffn, m.hidden());
}

void makeDequantize(Builder &b) {
  const int64_t rows = b.model.ffn,
                columns = std::max<int64_t>(b.model.hidden() / Nf4Block::kNumbers, 1);
  b.records(DType::NF4x64, toNf4, {rows, columns}).toData({rows, columns * Nf4Block::kNumbers});
}

void makeDequantizeNested(Builder &b) {
  const int64_t rows = b.model.ffn,
                columns = std::max<int64_t>(b.model.hidden() / Nf4Record::kNumbers, 1);
  b.records(DType::NF4x512, toNf4Record, {rows, columns})
      .toData({rows, columns * Nf4Record::kNumbers});
}

void makeContractParts(Builder &b) {
  setParts(b.attrs());
  b.data({8 * b.model.channels, 2 * b.model.groups});
  b.toData({8 * b.model.channels, b.model.groups});
}

void makeJoinColumns(Builder &b) {
  const Model &m = b.model;
  b.data({m.batch, m.positions, m.ffn}).data({m.batch, m.positions, m.hidden()});
  b.toData({m.batch, m.positions, m.ffn + m.hidden()});
}

void makeMergeQkvNormRope(Builder &b) {
  const Model &m = b.model;
  b.attrs().rotary_dim = m.channels;
  b.data({m.batch, m.positions, m.heads, m.channels});
  for (int i = 0; i < 2; ++i)
    b.data({m.batch, m.positions, m.groups, m.channels});
  b.data({m.batch, m.positions, m.qkv()}).data({m.channels}).data({m.channels});
  b.floats({m.batch, m.positions, m.heads}).floats({m.batch, m.positions, m.groups});
  b.ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.qkv()}).toFloats({m.channels}).toFloats({m.channels});
}

} // namespace shardc::kernels::bench
