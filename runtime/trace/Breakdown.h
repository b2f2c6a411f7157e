// Breaks down the time of traced steps: by op, exposed communication, gaps, and ops that ran longer
// because communication overlapped them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/plan/Plan.h"
#include "runtime/trace/Span.h"

namespace shardc::trace {

/// An op that the labels of spans name.
struct TracedOp {
  std::string_view op;     ///< name in the op table
  bool isTransfer = false; ///< a collective
  /// Equal for ops that do the same on other values, such as those of other layers.
  uint32_t likes = 0;
};

/// The ops by label. Profilers report only labels, so this is how a trace finds an op's kind.
using TracedOps = std::unordered_map<std::string, TracedOp>;

TracedOps tracedOps(const plan::Plan &plan);

struct OpTime {
  std::string op; ///< name in the op table
  int count = 0;  ///< spans per step
  double ms = 0;  ///< time per step
  /// The part that is used in sums: time that several ops share belongs to the one that began
  /// first, and time of transfers during which an op computes belongs to that op.
  double ownMs = 0;
};

/// Times of one rank in milliseconds, averaged over the traced steps.
struct Breakdown {
  std::vector<OpTime> ops; ///< longest first
  double step = 0;         ///< from the first span to the last
  double computing = 0;    ///< a span other than communication runs
  double exposed = 0;      ///< exposed communication: only collectives or copies run
  double gaps = 0;         ///< no span runs
  /// Additional time of ops that communication overlapped: the sum of their times beyond the median
  /// of the same op, value and kernel in other layers without overlap.
  double contention = 0;
  double uncompared = 0; ///< overlapped ops with too few alike ops for a median
};

/// Breaks down the spans of `rank` in `steps` steps. Work whose label is not in `ops` has no known
/// op.
Breakdown breakDown(const std::vector<Span> &spans, int rank, int steps, const TracedOps &ops);

/// Formats the breakdown as a table of all ops.
std::string toText(const Breakdown &breakdown);

/// Formats at most ten rows that add up to the step: the ops that take most of its time, all other
/// ops, the exposed communication and the gaps.
std::string toSummary(const Breakdown &breakdown);

} // namespace shardc::trace
