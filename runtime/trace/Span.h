// A piece of work that a device ran. Recorded by backends and written to trace files.
#pragma once

#include <cstdint>
#include <string>

namespace shardc::trace {

struct Span {
  int rank = 0;        ///< in the world
  std::string stream;  ///< name of the stream from the executor
  std::string label;   ///< label of the op that enqueued the work; empty if no op did
  std::string work;    ///< kernel, copy or fill, as named by the device's library
  int64_t beginNs = 0; ///< on a clock that all spans of a trace share
  int64_t endNs = 0;
  int64_t microbatch = -1; ///< the microbatch of the work; -1 if unknown
};

} // namespace shardc::trace
