// The interface of a backend: the devices of this process and the channels between ranks. The
// executor uses only these classes; types of CUDA or the host backend stay inside backend/.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/hal/Buffer.h"
#include "runtime/hal/Stream.h"
#include "runtime/hal/TestPort.h"
#include "runtime/trace/Span.h"

namespace shardc::hal {

/// Memory of a device as the system counts it: of all processes, including contexts and libraries.
struct DeviceMemory {
  int64_t total = 0; ///< bytes; 0: the device has no separate memory
  int64_t used = 0;
};

/// The device of one rank.
class Device {
public:
  virtual ~Device() = default;

  /// This device's rank in the whole job.
  virtual int rank() const = 0;
  /// Allocates uninitialised memory. Exhausted, with both sizes, if there is not enough.
  virtual Result<std::unique_ptr<Buffer>> allocate(MemoryKind kind, int64_t bytes,
                                                   std::string_view name) = 0;
  /// `name` is for people.
  virtual Result<std::unique_ptr<Stream>> createStream(std::string_view name, StreamUse use) = 0;
  virtual Result<std::unique_ptr<Event>> createEvent() = 0;
  /// An event that records the time at which it is reached, if the backend supports it.
  virtual Result<std::unique_ptr<Event>> createTimedEvent() { return createEvent(); }
  /// Null if the backend has no marks.
  virtual Result<std::unique_ptr<Mark>> createMark() { return std::unique_ptr<Mark>(); }
  /// Bytes that `allocate` could still allocate of the kind, as far as the system reports it.
  virtual int64_t bytesFree(MemoryKind kind) const = 0;
  virtual DeviceMemory memory() const { return {}; }
  /// The links to other devices and machines, as one line; empty if unknown.
  virtual std::string links() const { return ""; }
  /// Number of device allocations of the backend in this process. Steps allocate nothing.
  virtual int64_t allocationCount() const = 0;
};

class Backend {
public:
  virtual ~Backend() = default;

  /// The name that a plan's `needs` uses: "host" or "cuda".
  virtual std::string_view name() const = 0;
  virtual int worldSize() const = 0;
  /// True if the devices of this process share one pool of memory.
  virtual bool devicesShareMemory() const = 0;
  /// True if channels use receive buffers for sums (runtime/base/Reduction.h).
  virtual bool hasReceiveBuffers() const { return false; }
  /// The devices of this process, by rank.
  virtual std::span<Device *const> devices() const = 0;
  /// Creates a communicator. All processes that hold members must create the same channels in the
  /// same order.
  virtual Result<std::unique_ptr<Channel>> createChannel(const ChannelDesc &desc) = 0;
  /// Waits until all queued work on all devices of this process has ended, or cannot end.
  virtual Status synchronize() = 0;
  /// Blocks until one of the events, at least one, has been reached. Returns the reason if that
  /// cannot be any more. A backend whose work has ended once it is enqueued needs nothing else.
  virtual Status waitForAny(std::span<Event *const> events) {
    return events.front()->synchronize();
  }
  /// Releases everything that waits for ranks that will not answer. Any thread may call it; the
  /// backend cannot be used afterwards.
  virtual void abort() {}
  /// State that this backend's kernels keep between calls, and to which their calls refer; null:
  /// none.
  virtual kernels::KernelContext *kernelContext() const { return nullptr; }
  /// Null if the backend has nothing for tests.
  virtual TestPort *testPort() { return nullptr; }
  /// Checks the guard zones around buffers for writes; ok if the backend has none. Nothing may be
  /// running.
  virtual Status checkGuards() { return Status::ok(); }
  /// Records from now on when each piece of work runs. Unavailable if the backend does not support
  /// it, or was not created for it.
  virtual Status startTrace() {
    return Status(StatusCode::Unavailable, "this backend records no traces");
  }
  /// The work since `startTrace`, sorted by begin. Nothing may be running.
  virtual Result<std::vector<trace::Span>> stopTrace() { return std::vector<trace::Span>{}; }
};

} // namespace shardc::hal
