// What executing a plan takes beside its arenas: graphs that are captured, gathers that are issued
// as one, and landing buffers. Compiler and runtime share this, so that predictions are of what
// runs.
#pragma once

#include <optional>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- gathers of a unit that stand next to each other are issued as one ----

/// By op, the ops that are issued with it, in order: itself alone; all of several gathers at the
/// first of them, and none at the others. Such gathers have the same unit, channel, stream and
/// predicate, NCCL's kernels move them, and only aliases stand between them. Each of them waits for
/// all that one of them waits for, and has ended when all have; so in a placed plan none writes
/// bytes that another one reads or writes.
std::vector<std::vector<uint32_t>> issuedTogether(const Plan &plan, const Segment &segment);

// ---- a run captures a graph for each segment, variant and slot of its rings ----

struct GraphNeed {
  int64_t graphs = 0;
  int64_t nodes = 0; ///< kernels, copies and collectives of all of them, on GPUs

  /// Bytes of the device and seconds of the capture, from rates that were seen to be enough.
  int64_t bytes() const;
  double seconds() const;
};

/// Of one rank of the role.
GraphNeed graphsOf(const Plan &plan, const Role &role);
/// If that is more than a rank may capture. Without rings there are few variants, and limits of ops
/// are enough.
std::optional<GraphNeed> graphsBeyondLimit(const Plan &plan, const Role &role);
/// `12 graphs with 3456 nodes, about 13.5 MiB and 0.1 s to capture`.
std::string toString(const GraphNeed &need);

// ---- landing buffers: device memory outside of the arenas, on backends that form sums as
// runtime/base/Reduction.h says ----

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
