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

/// Memory of a device as the system counts it: everybody's, contexts and libraries included.
struct DeviceMemory {
  int64_t total = 0; ///< bytes; 0: the device has no memory of its own
  int64_t used = 0;
};

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
  /// One that keeps the time at which it is reached, if the backend can tell.
  virtual Result<std::unique_ptr<Event>> createTimedEvent() { return createEvent(); }
  /// Null if the backend has no marks.
  virtual Result<std::unique_ptr<Mark>> createMark() { return std::unique_ptr<Mark>(); }
  /// Bytes that `allocate` could still give out for the kind, as far as the system says.
  virtual int64_t bytesFree(MemoryKind kind) const = 0;
  virtual DeviceMemory memory() const { return {}; }
  /// The links to other devices and machines that were found, as one line; empty: nothing is known.
  virtual std::string links() const { return ""; }
  /// Allocations of device memory that the backend has made in this process. Steps make none.
  virtual int64_t allocationCount() const = 0;
};

class Backend {
public:
  virtual ~Backend() = default;

  /// As in a plan's `needs`: "host" or "cuda".
  virtual std::string_view name() const = 0;
  virtual int worldSize() const = 0;
  /// True if the devices of this process take their memory from one pool.
  virtual bool devicesShareMemory() const = 0;
  /// True if channels form sums in landing buffers (runtime/base/Reduction.h).
  virtual bool hasLandingBuffers() const { return false; }
  /// The devices of this process, by rank.
  virtual std::span<Device *const> devices() const = 0;
  /// Makes a communicator. All processes that hold members make the same channels in the same
  /// order.
  virtual Result<std::unique_ptr<Channel>> createChannel(const ChannelDesc &desc) = 0;
  /// Waits until everything queued on all devices of this process has ended, or cannot.
  virtual Status synchronize() = 0;
  /// Ends what waits for ranks that will not answer. Any thread may call it; nothing of this
  /// backend can be used afterwards.
  virtual void abort() {}
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
