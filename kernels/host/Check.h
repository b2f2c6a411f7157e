// What the `accepts` functions are made of: each condition that `run` relies on, with its reason.
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// Leaves an `accepts` function with the reason unless the condition holds.
#define SHARDC_REQUIRE(condition, reason)                                                          \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return reason;                                                                               \
  } while (false)

/// Leaves an `accepts` function with the reason that `check` returns, if any.
#define SHARDC_REQUIRE_OK(check)                                                                   \
  do {                                                                                             \
    if (const char *reason_ = (check))                                                             \
      return reason_;                                                                              \
  } while (false)

/// How many operands and results an op has; bit r of `accumulates` allows result r to accumulate.
struct Arity {
  int inMin, inMax, outMin, outMax;
  uint32_t accumulates = 0;
};

/// Null, or why counts, ranks, extents or accumulate flags are not as the arity says. Extents are
/// positive and below 2^31, element counts below 2^40.
const char *checkArity(const Call &call, Arity arity);

/// Null, or why a tensor's rank or extents are out of range.
const char *checkTensor(const Tensor &tensor);

/// Null, or why the ranges of operand `index` of a list (0 for a single shard) do not lie in it.
const char *checkRanges(const Call &call, int64_t index, const Tensor &shard);

/// Null, or why a tensor is not as large as StepState.
const char *checkStateSize(const Tensor &state);

/// Null if operand `in` holds a StepState and result 0 is the same place, else why not.
const char *checkState(const Call &call, int in);

inline bool isData(const Tensor &t) { return t.dtype == DType::F32 || t.dtype == DType::BF16; }
inline bool isVector(const Tensor &t, int64_t n) { return t.rank == 1 && t.shape[0] == n; }
inline bool isScalar(const Tensor &t, DType type) { return t.dtype == type && t.numel() == 1; }

/// The same number of rows of the same length; how the leading dimensions are split may differ.
inline bool sameMatrix(const Tensor &a, const Tensor &b) {
  return a.cols() == b.cols() && a.numel() == b.numel();
}

} // namespace shardc::kernels::host
