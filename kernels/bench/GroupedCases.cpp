#include "kernels/bench/GroupedCases.h"

namespace shardc::kernels::bench {

/// Each row chooses two groups, which are in two slots.
void makeMakeRuns(Builder &b) {
  const Model &m = b.model;
  b.attrs().bound = 2 * m.rows();
  b.ids({m.rows(), 2}, 2 * m.groups).to(DType::I32, {2, m.groups}).to(DType::I32, {m.rows(), 2});
}

/// The capacity exceeds the number of rows.
void makeDispatch(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.hidden()}).ids({m.rows(), 2}, 2 * m.rows()).data({m.rows(), 2});
  b.toData({3 * m.rows(), m.hidden()});
}

void makeCombine(Builder &b) {
  const Model &m = b.model;
  b.data({2 * m.rows(), m.hidden()}).ids({m.rows(), 2}, 2 * m.rows()).data({m.rows(), 2});
  b.toData({m.rows(), m.hidden()});
}

void makeCombineBwd(Builder &b) {
  const Model &m = b.model;
  b.data({2 * m.rows(), m.hidden()}).data({m.rows(), m.hidden()});
  b.ids({m.rows(), 2}, 2 * m.rows()).toData({m.rows(), 2});
}

void makeScaleRows(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), 1}).toData({m.rows(), m.ffn});
}

void makeDotRows(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), m.ffn}).data({m.ffn}).toData({m.rows(), 1});
}

/// Two slots, whose groups have as many rows as a sequence has positions.
void makeGroupedMatMul(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.attrs().trans_b = true;
  b.data({rows, m.hidden()}).data({m.groups, m.ffn, m.hidden()});
  b.counts({2, m.groups}, static_cast<int32_t>(m.positions));
  b.toData({rows, m.ffn}).flops(rows, m.ffn, m.hidden());
}

/// Delayed scaling: operands have expected amaxes, and recorded amaxes are updated.
void makeGroupedMatMulDelayed(Builder &b) {
  makeGroupedMatMul(b);
  b.attrs().fp8_recipe = static_cast<int64_t>(Fp8Factors::Delayed);
  b.attrs().b_slot = b.model.groups;
  b.ones({2 * b.model.groups}).ones({2 * b.model.groups}).update(4);
}

void makeGroupedMatMulBwdDelayed(Builder &b) {
  makeGroupedMatMulBwd(b);
  b.attrs().fp8_recipe = static_cast<int64_t>(Fp8Factors::Delayed);
  b.attrs().b_slot = b.model.groups;
  b.ones({2 * b.model.groups}).ones({2 * b.model.groups}).update(4);
}

void makeGroupedMatMulScaled(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.attrs().trans_b = true;
  b.attrs().fp8_recipe = static_cast<int64_t>(Fp8Factors::Delayed);
  b.data({rows, m.hidden()}).bytes8({m.groups, m.ffn, m.hidden()});
  b.counts({2, m.groups}, static_cast<int32_t>(m.positions)).ones({m.groups, 4});
  b.ones({m.groups}).ones({m.groups}).toData({rows, m.ffn}).update(5);
  b.flops(rows, m.ffn, m.hidden());
}

void makeGroupedMatMulBwd(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.data({rows, m.ffn}).data({rows, m.hidden()});
  b.counts({2, m.groups}, static_cast<int32_t>(m.positions));
  b.toData({m.groups, m.ffn, m.hidden()}).flops(rows, m.ffn, m.hidden());
}

void makeGroupedMatMulBwdSquares(Builder &b) {
  makeGroupedMatMulBwd(b);
  b.to(DType::F64, {1});
}

void makeGroupedMatMulBias(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  makeGroupedMatMul(b);
  b.data({m.groups, m.ffn}).data({rows, 1});
}

void makeGroupedBias(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.data({rows, m.ffn}).data({m.groups, m.ffn});
  b.counts({2, m.groups}, static_cast<int32_t>(m.positions));
  b.data({rows, 1}).toData({rows, m.ffn});
}

void makeGroupedBiasBwd(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.data({rows, m.ffn}).counts({2, m.groups}, static_cast<int32_t>(m.positions));
  b.data({rows, 1}).toData({m.groups, m.ffn});
}

void makeGroupedBiasDot(Builder &b) {
  const Model &m = b.model;
  int64_t rows = 2 * m.groups * m.positions;
  b.data({rows, m.ffn}).data({m.groups, m.ffn});
  b.counts({2, m.groups}, static_cast<int32_t>(m.positions)).toData({rows, 1});
}

} // namespace shardc::kernels::bench
