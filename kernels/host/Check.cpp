// The limits on extents keep products of two sizes within 63 bits, so kernels need no checks for
// overflow.
#include "kernels/host/Check.h"

#include "kernels/host/Ranges.h"
#include "runtime/base/StepState.h"

namespace shardc::kernels::host {

const char *checkTensor(const Tensor &tensor) {
  constexpr int64_t extentMax = int64_t{1} << 31, numelMax = int64_t{1} << 40;
  SHARDC_REQUIRE(tensor.rank >= 1 && tensor.rank <= 4, "a tensor's rank is not 1 to 4");
  int64_t numel = 1;
  for (int d = 0; d < tensor.rank; ++d) {
    SHARDC_REQUIRE(tensor.shape[d] > 0, "an extent is not positive");
    SHARDC_REQUIRE(tensor.shape[d] < extentMax, "an extent is 2^31 or more");
    SHARDC_REQUIRE(numel < numelMax / tensor.shape[d], "a tensor has 2^40 elements or more");
    numel *= tensor.shape[d];
  }
  return nullptr;
}

const char *checkArity(const Call &call, Arity arity) {
  SHARDC_REQUIRE(call.inCount >= arity.inMin && call.inCount <= arity.inMax,
                 "wrong number of operands");
  SHARDC_REQUIRE(call.outCount >= arity.outMin && call.outCount <= arity.outMax,
                 "wrong number of results");
  for (int i = 0; i < call.inCount; ++i)
    SHARDC_REQUIRE_OK(checkTensor(call.in[i]));
  for (int i = 0; i < call.outCount; ++i) {
    SHARDC_REQUIRE_OK(checkTensor(call.out[i]));
    SHARDC_REQUIRE(!call.out[i].accumulate || (arity.accumulates >> i & 1),
                   "a result that cannot accumulate is asked to");
  }
  return nullptr;
}

const char *checkRanges(const Call &call, int64_t index, const Tensor &shard) {
  SHARDC_REQUIRE(call.rangesCount == 0 || call.ranges, "ranges are counted but not given");
  if (call.rangesOf)
    SHARDC_REQUIRE(0 <= call.rangesOf[index] && call.rangesOf[index] <= call.rangesOf[index + 1] &&
                       call.rangesOf[index + 1] <= call.rangesCount,
                   "the bounds of an operand's ranges are not in order");
  for (const ParamRange &range : rangesOfShard(call, index))
    SHARDC_REQUIRE(0 <= range.begin && range.begin <= range.end && range.end <= shard.numel(),
                   "a parameter's range is not inside its shard");
  return nullptr;
}

const char *checkStateSize(const Tensor &state) {
  SHARDC_REQUIRE(state.numel() * dtypeBytes(state.dtype) == static_cast<int64_t>(sizeof(StepState)),
                 "the state does not have the size of StepState");
  return nullptr;
}

const char *checkState(const Call &call, int in) {
  SHARDC_REQUIRE_OK(checkStateSize(call.in[in]));
  SHARDC_REQUIRE_OK(checkStateSize(call.out[0]));
  SHARDC_REQUIRE(call.in[in].data == call.out[0].data, "the state is not updated in place");
  return nullptr;
}

} // namespace shardc::kernels::host
