#include "test/kernels/bench/OptimizerCases.h"

#include <algorithm>

#include "runtime/base/NewtonSchulz.h"

namespace shardc::kernels::bench {
namespace {

int64_t sizeOf(const Builder &b) { return b.model.ffn * b.model.hidden(); }

void setRates(Builder &b) {
  b.attrs().beta1 = 0.9;
  b.attrs().beta2 = 0.95;
  b.attrs().momentum = 0.9;
  b.attrs().eps = 1e-8;
}

/// An optimizer with `moments` moments on a shard with `n` elements and one weight. Gradients have
/// the data's type.
void makeOptimizer(Builder &b, int moments, int64_t n) {
  setRates(b);
  b.data({n}).floats({n});
  for (int i = 0; i < moments; ++i)
    b.ones({n});
  b.state();
  for (int i = 0; i <= moments; ++i)
    b.update(1 + i);
  b.toData({n});
}

void makeOptimizer(Builder &b, int moments) {
  makeOptimizer(b, moments, sizeOf(b));
  b.addRange(sizeOf(b));
}

/// Adds the products of Newton-Schulz steps of a matrix.
void addSteps(Builder &b, int64_t rows, int64_t columns) {
  b.attrs().largest_matrix = std::max(b.attrs().largest_matrix, rows * columns);
  int64_t r = std::min(rows, columns), c = std::max(rows, columns);
  auto steps = static_cast<double>(b.attrs().ns_steps);
  b.flops(r, r, c, steps).flops(r, r, r, steps).flops(r, c, r, steps);
}

} // namespace

void makeAdamW(Builder &b) { makeOptimizer(b, 2); }
void makeSgd(Builder &b) { makeOptimizer(b, 0); }
void makeSgdMomentum(Builder &b) { makeOptimizer(b, 1); }
void makeLion(Builder &b) { makeOptimizer(b, 1); }

void makeMuon(Builder &b) {
  makeOptimizer(b, 1);
  b.rowsOf(b.model.hidden());
  addSteps(b, b.model.ffn, b.model.hidden());
}

void makeMuonOfHalves(Builder &b) {
  makeMuon(b);
  b.attrs().symmetric = true;
}

/// The matrices of a layer: queries, keys and values, the projection, gate and up, down.
void makeMuonOfLayer(Builder &b) {
  const Model &m = b.model;
  const int64_t hidden = m.hidden(), perGroup = m.heads / m.groups * m.channels;
  const int64_t rows[] = {m.groups * (perGroup + 2 * m.channels), hidden, 2 * m.ffn, hidden};
  const int64_t columns[] = {hidden, hidden, hidden, m.ffn};
  int64_t n = 0;
  for (int i = 0; i < 4; ++i)
    n += rows[i] * columns[i];
  makeOptimizer(b, 1, n);
  for (int64_t i = 0, begin = 0; i < 4; ++i) {
    ParamRange &range = b.addRange(begin + rows[i] * columns[i]).rowsOf(columns[i]).lastRange();
    range.begin = begin, range.key = static_cast<uint64_t>(i);
    begin = range.end;
    if (i > 0) {
      addSteps(b, rows[i], columns[i]);
      continue;
    }
    const int64_t turns[] = {perGroup, m.channels, m.channels};
    for (int turn = 0; turn < 3; ++turn) {
      range.turns[turn] = static_cast<int32_t>(turns[turn]);
      addSteps(b, m.groups * turns[turn], hidden);
    }
  }
}

/// Two ranks have parts of a matrix, and the shard is half of a rank's part.
void makeMuonOfParts(Builder &b) {
  makeMuon(b);
  b.floats({4 * sizeOf(b)});
  b.addWhole(2 * sizeOf(b), 2).rowsOf(b.model.hidden());
  b.attrs().tensor_parts = 2;
  b.attrs().largest_matrix *= 4;
}

void makeMuonUpdate(Builder &b) {
  int64_t n = sizeOf(b);
  setRates(b);
  b.data({n}).floats({n}).ones({n}).state();
  b.to(DType::F32, {n}).addRange(n);
  b.rowsOf(b.model.hidden());
}

namespace {

/// Adds the operands of a Newton-Schulz step for a matrix whose rows are divided between two ranks;
/// the shard is this rank's whole part. Returns the number of sums that the ranks add.
int64_t takePart(Builder &b) {
  const int64_t n = sizeOf(b), columns = b.model.hidden();
  bool isNarrow = b.dataType() == DType::BF16;
  b.attrs().products = static_cast<int64_t>(isNarrow ? NsProducts::Medium : NsProducts::Highest);
  b.attrs().ns_step = 1, b.attrs().sum_ranks = 2;
  b.attrs().largest_matrix = std::max(n, columns * columns);
  (isNarrow ? b.data({n}) : b.floats({n})).floats({n});
  b.addRange(n).rowsOf(columns).addWhole(n, 2).rowsOf(columns);
  return columns * columns;
}

} // namespace

void makeMuonSums(Builder &b) {
  const int64_t sums = takePart(b), columns = b.model.hidden();
  b.toFloats({sums}).flops(columns, columns, b.model.ffn);
}

void makeMuonStep(Builder &b) {
  const int64_t sums = takePart(b), columns = b.model.hidden();
  b.ones({sums}).to(b.dataType() == DType::BF16 ? DType::BF16 : DType::F32, {sizeOf(b)});
  b.flops(columns, columns, columns).flops(b.model.ffn, columns, columns);
}

/// The update of a part after divided Newton-Schulz steps.
void makeMuonDivided(Builder &b) {
  makeOptimizer(b, 1);
  b.rowsOf(b.model.hidden());
  b.attrs().divided = true;
  b.attrs().products = static_cast<int64_t>(NsProducts::Highest);
  b.floats({sizeOf(b)});
  b.addWhole(sizeOf(b), 2).rowsOf(b.model.hidden());
}

void makeInitBlock(Builder &b) { b.toData({sizeOf(b)}).addRange(sizeOf(b)); }

void makeAdamWOfHalves(Builder &b) {
  int64_t n = sizeOf(b);
  setRates(b);
  b.data({n}).zeros(DType::U16, {n}).ones({n}).ones({n}).state().weights({n});
  for (int operand : {1, 2, 3, 5})
    b.update(operand);
  b.addRange(n);
}

void makeInitBlockOfHalves(Builder &b) {
  int64_t n = sizeOf(b);
  b.to(DType::BF16, {n}).to(DType::U16, {n}).addRange(n);
}

} // namespace shardc::kernels::bench
