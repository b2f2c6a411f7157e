// Costs of executing a plan that are not in its arenas: captured graphs, batched all-gathers and
// receive buffers. Compiler and runtime share these functions, so predictions match execution.
#pragma once

#include <optional>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

// ---- batched all-gathers: adjacent gathers of one unit are issued as one call ----

/// For each op, the ops that are issued together with it, in order: usually only itself. For a
/// batch, the first gather lists all gathers of the batch and the others list none. A batch has one
/// unit, channel, stream and predicate, is carried by NCCL's kernels, and contains only alias ops
/// in between. Each gather of a batch waits for the waits of all, and completes with all; therefore
/// no gather of a placed plan writes bytes that another gather of its batch reads or writes.
std::vector<std::vector<uint32_t>> issuedTogether(const Plan &plan, const Segment &segment);

// ---- CUDA graphs: one is captured per segment, variant and ring slot ----

/// What the captured graphs of a role cost.
struct GraphNeed {
  int64_t graphs = 0;
  int64_t nodes = 0; ///< upper bound of kernels, copies and collectives in all graphs, on GPUs

  /// Both derive from measured upper bounds per node: device memory in bytes, and seconds to
  /// capture.
  int64_t bytes() const;
  double seconds() const;
};

/// The graphs that one rank of the role captures.
GraphNeed graphsOf(const Plan &plan, const Role &role);
/// The graphs of a rank if they exceed what a rank may capture, otherwise nothing. Plans without
/// rings have few variants, so the limits on ops suffice for them.
std::optional<GraphNeed> graphsBeyondLimit(const Plan &plan, const Role &role);
/// Text for messages: `12 graphs with 3456 nodes, about 13.5 MiB and 0.1 s to capture`.
std::string toString(const GraphNeed &need);

// ---- receive buffers: device memory outside of the arenas, for backends that reduce as described
// in runtime/base/Reduction.h ----

/// Whether the backend may add in the communication type and in any order.
inline bool sumsInAnyOrder(const Plan &plan, const Op &op) {
  return plan.transportOf(op) == Transport::Nccl;
}

/// Whether the op is a reduction in which members exchange their parts by sends and receives.
bool isExchanged(const Plan &plan, const Segment &segment, const Op &op);

/// Bytes of receive buffer that a collective needs on each member; 0 for gathers and other ops.
int64_t receiveBufferBytes(const Plan &plan, const Segment &segment, const Op &op);

/// Bytes that the collectives of one channel need on each member. They run one after the other and
/// share a buffer, so this is their maximum.
int64_t receiveBufferBytes(const Plan &plan, const Role &role, ChannelId channel);

/// Bytes of all receive buffers of a rank.
int64_t receiveBufferBytes(const Plan &plan, const Role &role);

} // namespace shardc::plan
