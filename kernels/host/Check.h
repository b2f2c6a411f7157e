// A host kernel accepts a call that fits the row of its op in Ops.def, if the op's own `accepts`
// function has no reason against it: each further condition that `run` relies on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/host/Scratch.h"
#include "runtime/plan/OpInfo.h"

namespace shardc::plan {
class FactorExtents;
}

namespace shardc::kernels {

/// The extents of a call's factors. Results with a rank of 0 are not known yet.
plan::FactorExtents extentsOf(plan::OpKind kind, const Call &call);

namespace host {

using plan::OpKind;

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

/// Null, or the reason why the call does not fit the row of its op: the numbers, types and extents
/// of operands and results, and the buffers that they share. Kernels compute in fewer types than
/// plans have. `accumulates` is as in Arity. Only lists are left to the kernel.
const char *refusalOfRow(OpKind kind, const Call &call, uint32_t accumulates);

using AcceptsFn = const char *(*)(const Call &call);

/// Accepts what fits the op's row, unless `kMore` gives a reason.
template <OpKind kKind, AcceptsFn kMore, uint32_t kAccumulates>
const char *acceptsRow(const Call &call) {
  SHARDC_REQUIRE_OK(refusalOfRow(kKind, call, kAccumulates));
  if constexpr (kMore != nullptr)
    return kMore(call);
  return nullptr;
}

/// The name of a kernel: that of its op, with underscores, and `kEnd`.
template <OpKind kKind, const char *kEnd>
inline constexpr auto kKernelName = [] {
  std::array<char, 64> name{};
  constexpr std::string_view op = plan::names::kNames[static_cast<size_t>(kKind)], end = kEnd;
  std::ranges::copy(end, std::ranges::replace_copy(op, name.data(), '.', '_').out);
  return name;
}();
inline constexpr char kHostEnd[] = "_host";

/// The host kernel of an op.
template <OpKind kKind, AcceptsFn kMore = nullptr, uint32_t kAccumulates = 0>
constexpr Kernel kernelOf(KernelFn run, size_t (*workspaceBytes)(const Call &) = nullptr) {
  return {kKernelName<kKind, kHostEnd>.data(), run, acceptsRow<kKind, kMore, kAccumulates>,
          workspaceBytes};
}
template <OpKind kKind, AcceptsFn kMore = nullptr, uint32_t kAccumulates = 0>
constexpr Kernel kernelOf(const Work &work) {
  return kernelOf<kKind, kMore, kAccumulates>(work.run, work.workspaceBytes);
}
/// Defines the kernel of a row: SHARDC_HOST_KERNEL(enumerator, run, [more, [accumulates]]), with
/// `run` or withBuffers<run>.
#define SHARDC_HOST_KERNEL(enumerator, run, ...)                                                   \
  const Kernel k##enumerator = kernelOf<OpKind::enumerator __VA_OPT__(, ) __VA_ARGS__>(run)

inline bool isData(const Tensor &t) { return isComputeType(t.dtype); }
inline bool isVector(const Tensor &t, int64_t n) { return t.rank == 1 && t.shape[0] == n; }
inline bool isScalar(const Tensor &t, DType type) { return t.dtype == type && t.numel() == 1; }

inline bool sameShape(const Tensor &a, const Tensor &b) {
  return a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape);
}

/// Null if `positions` is null or i32[B, S] with the B and S of `heads`; otherwise the reason.
inline const char *checkPositions(const Tensor *positions, const Tensor &heads) {
  SHARDC_REQUIRE(positions == nullptr || (positions->dtype == DType::I32 && positions->rank == 2 &&
                                          positions->shape[0] == heads.shape[0] &&
                                          positions->shape[1] == heads.shape[1]),
                 "positions are not i32[B, S]");
  return nullptr;
}

} // namespace host
} // namespace shardc::kernels
