// Library failures that a test injects, so that fallbacks are tested. Production code asks the
// object that it was given. Without one, nothing fails.
#pragma once

#include <cstdint>

namespace shardc {

/// A service of a library for which there is a fallback.
enum class Service : uint8_t {
  Windows,   ///< registration of buffers as windows, by NCCL
  Buffers,   ///< any registration of buffers by NCCL
  Peers,     ///< kernels that write into the memory of other ranks
  Attention, ///< attention by cuDNN
};

/// Outlives every object that was given it.
class Refusals {
public:
  virtual ~Refusals() = default;
  /// Any thread may call it.
  virtual bool refuses(Service what) const = 0;
};

} // namespace shardc
