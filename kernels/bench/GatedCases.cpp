#include "kernels/bench/GatedCases.h"

namespace shardc::kernels::bench {
namespace {

void setClamp(Builder &b) { b.attrs().clamp = 0.5, b.attrs().linear_offset = 1; }

/// Adds counts with one slot per sequence, in which all groups have the same number of rows.
void takeCounts(Builder &b) {
  const Model &m = b.model;
  b.counts({m.batch, m.groups}, static_cast<int32_t>(m.positions / m.groups));
}

} // namespace

void makeSwiGlu(Builder &b) {
  b.data({b.model.rows(), 2 * b.model.ffn}).toData({b.model.rows(), b.model.ffn});
}

void makeSwiGluBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), 2 * m.ffn}).toData({m.rows(), 2 * m.ffn});
  b.toData({m.rows(), m.ffn});
}

void makeQuickGeGlu(Builder &b) {
  makeSwiGlu(b);
  setClamp(b);
}

void makeQuickGeGluBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), 2 * m.ffn}).toData({m.rows(), 2 * m.ffn});
  setClamp(b);
}

void makeWeightedSwiGlu(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), 2 * m.ffn}).data({m.rows(), 1});
  takeCounts(b);
  b.toData({m.rows(), m.ffn});
}

void makeWeightedSwiGluBwd(Builder &b) {
  const Model &m = b.model;
  b.data({m.rows(), m.ffn}).data({m.rows(), 2 * m.ffn}).data({m.rows(), 1});
  takeCounts(b);
  b.toData({m.rows(), 2 * m.ffn}).toData({m.rows(), 1}).toData({m.rows(), m.ffn});
}

void makeWeightedQuickGeGlu(Builder &b) {
  makeWeightedSwiGlu(b);
  setClamp(b);
}

void makeWeightedQuickGeGluBwd(Builder &b) {
  makeWeightedSwiGluBwd(b);
  setClamp(b);
}

} // namespace shardc::kernels::bench
