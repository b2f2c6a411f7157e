// The size up to which collectives are small.
#pragma once

#include <cstdint>

namespace shardc {

/// Collectives up to this size, in bytes, are bound by latency, not by bandwidth. Their kernels use
/// one multiprocessor, and a channel that has no larger ones needs only a small communicator.
inline constexpr int64_t kSmallCollectiveBytes = 64 << 10;

} // namespace shardc
