// Types of ops on rows that lie in runs, with their counts.
#include "runtime/verify/VerifyShapes.h"

namespace shardc::plan::verifier {

/// Counts of rows, in slots of equal size.
void ShapeCheck::needCounts(const Type &counts, int64_t bound) {
  need(counts.dtype == DType::I32 && counts.rank == 2, "counts of i32[slots, runs]");
  need(bound % counts.shape[0] == 0, "a number of rows that its slots divide");
}

void ShapeCheck::needPlaces(const Type &places) {
  need(places.dtype == DType::I32 && places.rank == 2, "places of i32[T, K]");
}

void ShapeCheck::checkMakeRuns() {
  int64_t bound = op_.getInt(Key::bound);
  need(in(0).dtype == DType::I32 && in(0).rank == 2, "ids of i32[T, K]");
  needPlaces(out(1));
  need(bound > 0, "a bound of at least one row");
  needCounts(out(0), bound);
}

void ShapeCheck::checkDispatch() {
  need(isData(in(0)) && isData(out(0)) && out(0).rank == 2, "floating point x and y[rows, C]");
  needPlaces(in(1));
  need(!has(2) || isData(in(2)), "floating point weights");
}

void ShapeCheck::checkCombine() {
  need(isData(in(0)) && isData(out(0)) && in(0).rank == 2, "floating point y[rows, C] and x");
  needPlaces(in(1));
  need(!has(2) || isData(in(2)), "floating point weights");
}

void ShapeCheck::checkCombineBwd() {
  need(isData(in(0)) && isData(in(1)) && in(0).rank == 2, "floating point y[rows, C] and dx");
  needPlaces(in(2));
  need(isData(out(0)), "floating point gradients of weights as a result");
}

void ShapeCheck::checkScaleRows() {
  need(isData(in(0)) && isData(in(1)) && isData(out(0)), "floating point x, weights and y");
}

void ShapeCheck::checkDotRows() {
  need(isData(in(0)) && isData(in(1)) && isData(out(0)), "floating point a, b and y");
}

void ShapeCheck::checkGroupedMatMul() {
  need(isData(in(0)) && isData(in(1)) && isData(out(0)) && in(0).rank == 2 && in(1).rank == 3 &&
           out(0).rank == 2,
       "floating point a[rows, K], b[runs, K, M] and c[rows, M]");
  needCounts(in(2), rows(in(0)));
}

void ShapeCheck::checkGroupedMatMulBwd() {
  need(isData(in(0)) && isData(in(1)) && isData(out(0)) && in(0).rank == 2 && in(1).rank == 2 &&
           out(0).rank == 3,
       "floating point a[rows, K], b[rows, M] and dw[runs, K, M]");
  needCounts(in(2), rows(in(0)));
}

} // namespace shardc::plan::verifier
