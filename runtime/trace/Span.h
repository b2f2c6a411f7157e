// One piece of work as a device ran it: what backends record and trace files show.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::trace {

struct Span {
  int rank = 0;        ///< of the world
  std::string stream;  ///< as the executor named it
  std::string label;   ///< of the op that queued it; empty for what no op did
  std::string work;    ///< kernel, copy or fill, as the device's library calls it
  int64_t beginNs = 0; ///< on a clock that all spans of a trace share
  int64_t endNs = 0;
};

} // namespace shardc::trace
