// router_drop: ids i32[T,K], weights f32[T,K] -> kept i32[T,K]. An expert keeps as many rows as its
// capacity, ceil(capacity_factor·T·K/experts): those with the largest weights, or, with
// `by_position`, the first ones. Of equal weights, it keeps the first row; NaN precedes all others.
// The ids of dropped rows become -1. Ids that are not experts do not change. Limited by memory.
#include <algorithm>

#include "kernels/host/Check.h"
#include "kernels/host/Router.h"
#include "kernels/host/Rows.h"

namespace shardc::kernels::host {
namespace {

const char *acceptsRouterDrop(const Call &call) {
  SHARDC_REQUIRE(call.attrs.experts > 0 && call.attrs.capacity_factor > 0,
                 "the number of experts or the capacity is not above 0");
  return nullptr;
}

struct Buffers {
  int32_t *choices; ///< choices of one expert, as indices into ids

  Buffers(const Call &call, Scratch &scratch) {
    choices = scratch.take<int32_t>(call.in[0].numel());
  }
};

/// An expert with too many choices keeps the first ones, either by position or by weight. Dropped
/// choices become -1.
void runRouterDrop(const Call &call, const Buffers &buffers) {
  const int32_t *ids = static_cast<const int32_t *>(call.in[0].data);
  const float *weights = static_cast<const float *>(call.in[1].data);
  int32_t *kept = static_cast<int32_t *>(call.out[0].data);
  int64_t numel = call.in[0].numel(), experts = call.attrs.experts;
  int64_t capacity = expertCapacity(numel, experts, call.attrs.capacity_factor);
  std::copy_n(ids, numel, kept);
  for (int64_t expert = 0; expert < experts; ++expert) {
    int64_t count = 0;
    for (int64_t i = 0; i < numel; ++i)
      if (ids[i] == expert)
        buffers.choices[count++] = static_cast<int32_t>(i);
    if (count <= capacity)
      continue;
    if (!call.attrs.by_position)
      std::nth_element(buffers.choices, buffers.choices + capacity, buffers.choices + count,
                       [weights](int32_t a, int32_t b) { return isBefore(weights, a, b); });
    for (int64_t i = capacity; i < count; ++i)
      kept[buffers.choices[i]] = -1;
  }
}

} // namespace

SHARDC_HOST_KERNEL(RouterDrop, withBuffers<runRouterDrop>, acceptsRouterDrop);

} // namespace shardc::kernels::host
