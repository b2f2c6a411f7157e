// Checks for the `accepts` functions: each condition that `run` relies on, with its reason.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Returns the reason from an `accepts` function unless the condition holds.
#define SHARDC_REQUIRE(condition, reason)                                                          \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return reason;                                                                               \
  } while (false)

/// Returns the reason that `check` returns, if any, from an `accepts` function.
#define SHARDC_REQUIRE_OK(check)                                                                   \
  do {                                                                                             \
    if (const char *reason_ = (check))                                                             \
      return reason_;                                                                              \
  } while (false)

/// Numbers of operands and results. Bit r of `accumulates` means that result r may accumulate.
struct Arity {
  int inMin, inMax, outMin, outMax;
  uint32_t accumulates = 0;
};

/// Null, or the reason why counts, ranks, extents or accumulate flags do not match the arity.
/// Extents are positive and below 2^31, element counts below 2^40.
const char *checkArity(const Call &call, Arity arity);

/// Null, or the reason why a tensor's rank or extents are out of range.
const char *checkTensor(const Tensor &tensor);

/// Null, or why the ranges of operand `index` of a list (0 for a single shard) are not inside it.
const char *checkRanges(const Call &call, int64_t index, const Tensor &shard);

/// Null, or the reason why a tensor does not have the size of StepState.
const char *checkStateSize(const Tensor &state);

/// Null if operand `in` is a StepState and result 0 has the same address, otherwise the reason.
const char *checkState(const Call &call, int in);

inline bool isData(const Tensor &t) { return isComputeType(t.dtype); }
inline bool isVector(const Tensor &t, int64_t n) { return t.rank == 1 && t.shape[0] == n; }
inline bool isScalar(const Tensor &t, DType type) { return t.dtype == type && t.numel() == 1; }

inline bool sameShape(const Tensor &a, const Tensor &b) {
  return a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape);
}

/// Whether both have the same number of rows of the same length; leading dimensions may differ.
inline bool sameMatrix(const Tensor &a, const Tensor &b) {
  return a.cols() == b.cols() && a.numel() == b.numel();
}

/// Null, or the reason why x and y are not [B, S, heads, D] of the same extents.
inline const char *checkSameHeads(const Tensor &x, const Tensor &y) {
  SHARDC_REQUIRE(x.rank == 4, "x is not [B, S, heads, D]");
  SHARDC_REQUIRE(sameShape(x, y), "x and y differ in shape");
  return nullptr;
}

/// Null if `positions` is null or i32[B, S] with the B and S of `heads`; otherwise the reason.
inline const char *checkPositions(const Tensor *positions, const Tensor &heads) {
  SHARDC_REQUIRE(positions == nullptr || (positions->dtype == DType::I32 && positions->rank == 2 &&
                                          positions->shape[0] == heads.shape[0] &&
                                          positions->shape[1] == heads.shape[1]),
                 "positions are not i32[B, S]");
  return nullptr;
}

} // namespace shardc::kernels::host
