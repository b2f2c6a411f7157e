// The interface of a backend: the devices of this process and the channels between ranks. The
// executor uses only these classes. Types of CUDA and of the host backend stay inside backend/.
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

/// Memory of a device as the system reports it: for all processes, including contexts and
/// libraries.
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
  /// `name` appears in messages and profiles only.
  virtual Result<std::unique_ptr<Stream>> createStream(std::string_view name, StreamUse use) = 0;
  virtual Result<std::unique_ptr<Event>> createEvent() = 0;
  /// Creates an event that also records the time at which it is reached, if the backend supports
  /// that.
  virtual Result<std::unique_ptr<Event>> createTimedEvent() { return createEvent(); }
  /// Creates a mark; null if the backend has no marks.
  virtual Result<std::unique_ptr<Mark>> createMark() { return std::unique_ptr<Mark>(); }
  /// Bytes of this kind that `allocate` could still allocate, as reported by the system.
  virtual int64_t bytesFree(MemoryKind kind) const = 0;
  virtual DeviceMemory memory() const { return {}; }
  /// A line of text about the links to other devices and machines; empty if unknown.
  virtual std::string links() const { return ""; }
  /// Number of device allocations of the backend in this process. It must not grow during steps.
  virtual int64_t allocationCount() const = 0;
};

/// The devices of this process. Streams, buffers, events, graphs and channels that it created must
/// be destroyed before it.
class Backend {
public:
  virtual ~Backend() = default;

  /// The backend's name in a plan's `needs`: "host" or "cuda".
  virtual std::string_view name() const = 0;
  virtual int worldSize() const = 0;
  /// Whether the devices of this process share one pool of memory.
  virtual bool devicesShareMemory() const = 0;
  /// Whether channels use receive buffers for sums (runtime/base/Reduction.h).
  virtual bool hasReceiveBuffers() const { return false; }
  /// The devices of this process, sorted by rank.
  virtual std::span<Device *const> devices() const = 0;
  /// Creates a communicator. All processes that hold members must create the same channels in the
  /// same order.
  virtual Result<std::unique_ptr<Channel>> createChannel(const ChannelDesc &desc) = 0;
  /// Waits until all queued work on all devices of this process has ended. If work cannot end,
  /// returns the reason.
  virtual Status synchronize() = 0;
  /// Blocks until one of the events has been reached; `events` must not be empty. Returns the
  /// reason if none can be reached. The default suits backends whose work has ended once it is
  /// enqueued.
  virtual Status waitForAny(std::span<Event *const> events) {
    return events.front()->synchronize();
  }
  /// Ends all waits for ranks that will not answer. Any thread may call it. The backend cannot be
  /// used afterwards.
  virtual void abort() {}
  /// State that this backend's kernels keep between calls; calls refer to it. Null if there is
  /// none.
  virtual kernels::KernelContext *kernelContext() const { return nullptr; }
  /// The kinds of kernels among which ops choose, as text; empty if there is no choice. Runs with
  /// equal texts have equal results.
  virtual std::string kernelsText() const { return ""; }
  /// Functions for tests; null if the backend has none.
  virtual TestPort *testPort() { return nullptr; }
  /// Checks whether the guard zones around buffers were overwritten; ok if the backend has none.
  /// Nothing may be running.
  virtual Status checkGuards() { return Status::ok(); }
  /// Starts to record when each piece of work runs. Unavailable if the backend does not support it
  /// or was not created for it.
  virtual Status startTrace() {
    return Status(StatusCode::Unavailable, "this backend records no traces");
  }
  /// Stops recording and returns the work since `startTrace`, sorted by begin. Nothing may be
  /// running.
  virtual Result<std::vector<trace::Span>> stopTrace() { return std::vector<trace::Span>{}; }
};

} // namespace shardc::hal
