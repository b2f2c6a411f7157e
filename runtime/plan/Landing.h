// Landing buffers of a plan's collectives: device memory outside the arenas, on backends that form
// sums as runtime/base/Reduction.h says.
#pragma once

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// True if the backend that the plan is for has landing buffers at all.
inline bool hasLandingBuffers(const Plan &plan) { return plan.needsBackend == "cuda"; }

/// True if a backend may form the op's sum in the wire's type and in whatever order is fastest.
inline bool sumsInAnyOrder(const Plan &plan, const Op &op) {
  return plan.transportOf(op) == Transport::Nccl;
}

/// True if the op is a sum whose parts members send each other.
bool isExchanged(const Plan &plan, const Segment &segment, const Op &op);

/// Bytes that a collective of the segment needs on each member; 0 for gathers and other ops.
int64_t landingBytes(const Plan &plan, const Segment &segment, const Op &op);

/// Bytes that the collectives of one channel need on each member: they run one after the other, so
/// this is the largest.
int64_t landingBytes(const Plan &plan, const Role &role, ChannelId channel);

/// Bytes of all landing buffers of a rank.
int64_t landingBytes(const Plan &plan, const Role &role);

} // namespace shardc::plan
