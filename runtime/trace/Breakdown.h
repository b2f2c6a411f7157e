// Where the time of traced steps went: by op, in transfers that nothing hides, in gaps, and in ops
// that ran longer because a transfer ran beside them.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/Span.h"

namespace shardc::trace {

struct OpTime {
  std::string op; ///< name in the op table
  int count = 0;  ///< of spans in a step
  double ms = 0;  ///< of a step
};

/// Of one rank, for one of `steps` steps, in milliseconds.
struct Breakdown {
  std::vector<OpTime> ops; ///< longest first
  double step = 0;         ///< from the first span to the last
  double computing = 0;    ///< some span that is no transfer runs
  double exposed = 0;      ///< transfers run and nothing else does
  double gaps = 0;         ///< nothing runs
  /// Sum over ops that a transfer ran beside of what they took beyond the median of their likes
  /// (same op, value and kernel, another layer) without one.
  double contention = 0;
  double uncompared = 0; ///< ops that a transfer ran beside and of which hardly any ran without
};

Breakdown breakDown(const std::vector<Span> &spans, int rank, int steps);

/// A table for people.
std::string toText(const Breakdown &breakdown);

} // namespace shardc::trace
