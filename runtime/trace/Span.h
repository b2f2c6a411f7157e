// One piece of work as a device ran it, recorded by backends and written to trace files.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::trace {

struct Span {
  int rank = 0;        ///< of the world
  std::string stream;  ///< as the executor named it
  std::string label;   ///< of the op that enqueued it; empty for work without an op
  std::string work;    ///< kernel, copy or fill, under the name of the device's library
  int64_t beginNs = 0; ///< on a clock that all spans of a trace share
  int64_t endNs = 0;
  int64_t microbatch = -1; ///< that it was done for; -1 if nobody knows
};

} // namespace shardc::trace
