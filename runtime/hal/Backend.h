// A backend: the devices of this process and the channels between ranks. The executor is written
// against these classes alone; no type of CUDA or of the host backend is seen outside of backend/.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/hal/Buffer.h"
#include "runtime/hal/Stream.h"
#include "runtime/trace/Span.h"

namespace shardc::hal {

/// What one rank runs on.
class Device {
public:
  virtual ~Device() = default;

  /// This device's rank in the whole job.
  virtual int rank() const = 0;
  /// Allocates uninitialised memory. Exhausted, with both figures, if there is not enough.
  virtual Result<std::unique_ptr<Buffer>> allocate(MemoryKind kind, int64_t bytes,
                                                   std::string_view name) = 0;
  virtual Result<std::unique_ptr<Stream>> createStream(std::string_view name) = 0;
  virtual Result<std::unique_ptr<Event>> createEvent() = 0;
  /// Bytes that `allocate` could still give out for the kind, as far as the system says.
  virtual int64_t bytesFree(MemoryKind kind) const = 0;
};

class Backend {
public:
  virtual ~Backend() = default;

  /// As in a plan's `needs`: "host" or "cuda".
  virtual std::string_view name() const = 0;
  virtual int worldSize() const = 0;
  /// True if the devices of this process take their memory from one pool.
  virtual bool devicesShareMemory() const = 0;
  /// The devices of this process, by rank.
  virtual std::span<Device *const> devices() const = 0;
  /// Makes a communicator. All processes that hold members make the same channels in the same
  /// order.
  virtual Result<std::unique_ptr<Channel>> createChannel(const ChannelDesc &desc) = 0;
  /// Waits until everything queued on all devices of this process has ended, or cannot.
  virtual Status synchronize() = 0;
  /// Looks for writes outside of buffers where the backend keeps guard zones; ok where it keeps
  /// none. Nothing may be running.
  virtual Status checkGuards() { return Status::ok(); }
  /// Records from here on when each piece of work runs. Unavailable where the backend cannot, or
  /// was not asked to be able to when it was made.
  virtual Status startTrace() {
    return Status(StatusCode::Unavailable, "this backend records no traces");
  }
  /// What ran since `startTrace`, in order of begin. Nothing may be running.
  virtual Result<std::vector<trace::Span>> stopTrace() { return std::vector<trace::Span>{}; }
};

} // namespace shardc::hal
