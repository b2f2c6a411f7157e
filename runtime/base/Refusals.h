// Library failures that a test injects, so that the fallbacks run too. Production code asks the
// object that it was given; without one nothing fails.
#pragma once

#include <cstdint>

namespace shardc {

/// A service of a library that code can do without.
enum class Service : uint8_t {
  Windows,   ///< NCCL registers buffers as windows
  Buffers,   ///< NCCL registers buffers at all
  Peers,     ///< kernels write into the memory of other ranks
  Attention, ///< cuDNN computes attention
};

class Refusals {
public:
  virtual ~Refusals() = default;
  /// Any thread may ask.
  virtual bool refuses(Service what) const = 0;
};

} // namespace shardc
