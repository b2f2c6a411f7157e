// What the graphs of a role take: a run captures one for each instance of each segment, which are
// the variants of its microbatches at each of the slots of its rings.
#pragma once

#include <optional>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

struct GraphNeed {
  int64_t graphs = 0;
  int64_t nodes = 0; ///< kernels, copies and collectives of all of them, on GPUs

  /// Bytes of the device and seconds of the capture, from rates that were seen to be enough.
  int64_t bytes() const;
  double seconds() const;
};

/// Of one rank of the role.
GraphNeed graphsOf(const Role &role);
/// If that is more than a rank may capture. Without rings there are few variants, and limits of ops
/// are enough.
std::optional<GraphNeed> graphsBeyondLimit(const Role &role);
/// `12 graphs with 3456 nodes, about 13.5 MiB and 0.1 s to capture`.
std::string toString(const GraphNeed &need);

} // namespace shardc::plan
