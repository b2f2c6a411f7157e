#include "runtime/plan/StateShare.h"

#include <algorithm>

namespace shardc::plan {
namespace {

constexpr int64_t kStepMultiple = 64; ///< elements: stretches begin on 256 bytes in fp32

} // namespace

StateShare stateShareOf(const Plan &plan, int32_t block, int64_t ranks) {
  int64_t numel = plan.blocks[static_cast<size_t>(block)].numel, longest = 1;
  for (const Param &param : plan.params)
    if (param.block == block)
      longest = std::max(longest, param.rowSize());
  if (ranks < 2 || numel <= longest)
    return {};
  int64_t step = (numel - longest) / ranks / kStepMultiple * kStepMultiple;
  if (step < longest)
    return {};
  // A row that begins before the next stretch ends no more than its own length after that.
  return {step, numel - (ranks - 1) * step};
}

} // namespace shardc::plan
