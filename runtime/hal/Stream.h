// A queue of one rank, the events that order queues, and graphs: work that is recorded once and
// then launched as a whole. All calls except those that wait for events or marks return before the
// work has run.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "kernels/api/Kernel.h"
#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::hal {

/// A point in a stream. Recording again moves it; a wait refers to the latest record before the
/// wait.
class Event {
public:
  virtual ~Event() = default;

  /// True once the last record has been reached, or if the event was never recorded.
  virtual bool isDone() = 0;
  /// Blocks the calling thread until the last record has been reached. If the backend's work cannot
  /// continue, returns the reason instead (deadlock, a failed kernel, a collective whose members
  /// disagree).
  virtual Status synchronize() = 0;
  /// Seconds on the device's clock from the last record of the other event to that of this one.
  /// Both must have been reached. NaN if one of them records no time.
  virtual double secondsSince(Event &) { return std::numeric_limits<double>::quiet_NaN(); }
};

/// A point in a graph that counts the launches that have passed it.
class Mark {
public:
  virtual ~Mark() = default;

  /// True once this many launches, counted from the graph's first, have passed.
  virtual bool isPassed(int64_t launches) = 0;
  /// Blocks the calling thread until this many launches have passed. Returns the reason if they
  /// cannot.
  virtual Status await(int64_t launches) = 0;
};

/// The parameters in which launches of one graph differ. Kernels find them in their Call.
struct LaunchParams {
  int64_t step = 0;         ///< visits of the segment before this one
  int64_t microbatch = 0;   ///< index of the microbatch in this visit
  int64_t microbatches = 1; ///< microbatches in this visit
};

/// The part of a call that is specific to a rank. Ranks of one process share the rest.
struct OwnPart {
  void *const *addresses = nullptr; ///< addresses of the operands in order, then of the results
  const kernels::Tensor *list = nullptr;
  const kernels::ParamRange *ranges = nullptr;
  const int64_t *rangesOf = nullptr;
  int64_t rangesCount = 0;
  void *workspace = nullptr;
  int64_t index = 0; ///< the rank's index in the op's group
};

/// The shared call, completed with the rank's own part.
inline kernels::Call apply(const kernels::Call &shared, const OwnPart &own) {
  kernels::Call call = shared;
  void *const *address = own.addresses;
  for (int i = 0; i < call.inCount; ++i)
    call.in[i].data = *address++;
  for (int i = 0; i < call.outCount; ++i)
    call.out[i].data = *address++;
  call.list = own.list;
  call.index = own.index;
  call.ranges = own.ranges;
  call.rangesOf = own.rangesOf;
  call.rangesCount = own.rangesCount;
  call.workspace = own.workspace;
  return call;
}

/// Captured work of one rank. Destroy it only when none of its launches is running.
class Graph {
public:
  virtual ~Graph() = default;
  /// The name of the graph's launches in profilers.
  void setLabel(std::string label) { label_ = std::move(label); }
  const std::string &label() const { return label_; }
  /// Number of nodes. Each takes space in the device's queue when the graph is launched.
  int64_t nodes() const { return nodes_; }

protected:
  void setNodes(int64_t nodes) { nodes_ = nodes; }

private:
  std::string label_ = "graph";
  int64_t nodes_ = 0;
};

/// One of several collectives that are issued together.
struct Part {
  const Collective *desc = nullptr;
  const char *label = "";
};

/// The purpose of a stream. A backend may give transfers a higher priority than compute.
enum class StreamUse : uint8_t { Compute, Transfer };

/// Executes the work of one rank in order. Labels and Calls are kept by address: they must live
/// until the work has ended, or as long as its graph. Only one thread at a time may use a rank's
/// streams.
class Stream {
public:
  virtual ~Stream() = default;

  /// Enqueues a kernel. During capture the call's addresses are final; each launch provides step
  /// and microbatch.
  virtual Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) = 0;
  /// Like launch(), for a call that ranks of this process share; `own` is kept by address too. The
  /// default suits backends that read calls when they are enqueued. Other backends read both when
  /// the kernel runs.
  virtual Status launchShared(kernels::KernelFn kernel, const kernels::Call &call,
                              const OwnPart &own, const char *label) {
    kernels::Call rankCall = apply(call, own);
    return launch(kernel, rankCall, label);
  }
  /// Enqueues a copy between any two buffers of this rank.
  virtual Status copy(void *to, const void *from, int64_t bytes, const char *label) = 0;
  /// Enqueues setting `bytes` bytes to `value`.
  virtual Status fill(void *to, uint8_t value, int64_t bytes, const char *label) = 0;
  /// Enqueues this rank's part in a collective of one of its channels.
  virtual Status collective(Channel &channel, const Collective &desc, const char *label) = 0;
  /// Enqueues the rank's parts of several all-gathers of one channel that do not depend on each
  /// other. They are executed as one transfer if the backend can, otherwise one after the other.
  /// All members must issue the same all-gathers together.
  virtual Status gathers(Channel &channel, std::span<const Part> parts);

  /// Enqueues a write of one word to `Host` memory. Other threads read the word as the progress of
  /// the stream. A backend without support leaves the word unchanged.
  virtual Status writeWord(uint32_t *, uint32_t) { return Status::ok(); }

  virtual Status record(Event &event) = 0;
  /// Adds a mark to the graph that is being captured, at most once per mark. Each launch of the
  /// graph passes the mark here.
  virtual Status mark(Mark &) {
    return Status(StatusCode::Unavailable, "this backend has no marks");
  }
  /// Orders work that is enqueued from now on after the event's latest record.
  virtual Status wait(Event &event) = 0;

  /// Starts to record work instead of executing it. Other streams of the rank join by waiting for
  /// an event that was recorded during this capture, and must be joined back before it ends.
  virtual Status beginCapture() = 0;
  virtual Result<std::unique_ptr<Graph>> endCapture() = 0;
  /// Ends the capture that began on this stream without creating a graph, in any state: joined or
  /// not, or invalidated. Afterwards the rank's streams execute work again. Does nothing if no
  /// capture began.
  virtual void abandonCapture() = 0;
  /// Enqueues a whole graph. It starts after the stream's earlier work, and later work starts after
  /// it.
  virtual Status launch(Graph &graph, const LaunchParams &params) = 0;
};

} // namespace shardc::hal
