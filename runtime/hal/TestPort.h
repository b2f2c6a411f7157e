// Functions of a backend for tests only. Code that runs plans passes this object on to objects of
// the test and calls none of its functions.
#pragma once

#include <cstdint>

#include "runtime/hal/Stream.h"

namespace shardc::hal {

/// The kind of fault that a test injects into a stream: an error that a channel's library reports,
/// or an error of the device.
enum class InjectedError : uint8_t { Channel, Device };

/// Exists only where a backend can inject faults: see Backend::testPort().
class TestPort {
public:
  virtual ~TestPort() = default;
  /// Injects the fault. Work that is enqueued on the stream from now on does not start, and waits
  /// for it return an error.
  virtual Status injectError(Stream &stream, InjectedError error, const Channel &channel) = 0;
};

} // namespace shardc::hal
