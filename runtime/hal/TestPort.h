// The functions of a backend that only tests use. Code that runs plans passes it to the test's own
// objects, and calls none of its functions.
#pragma once

#include <cstdint>

#include "runtime/hal/Stream.h"

namespace shardc::hal {

/// A fault that a test injects into a stream: an error of a channel, as its library reports it, or
/// of the device.
enum class InjectedError : uint8_t { Channel, Device };

class TestPort {
public:
  virtual ~TestPort() = default;
  /// Work enqueued on the stream from now on does not start, and waits for it return an error.
  virtual Status injectError(Stream &stream, InjectedError error, const Channel &channel) = 0;
};

} // namespace shardc::hal
