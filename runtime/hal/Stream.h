// A queue of one rank, the events that order queues, and graphs: work that is recorded once and
// then launched as a whole. All calls except Event::synchronize return at once, before the work has
// run.
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

  /// True once the last record has been reached, and for an event that was never recorded.
  virtual bool isDone() = 0;
  /// Blocks the calling thread until the last record has been reached. If the backend's work cannot
  /// continue, returns the reason instead (deadlock, a failed kernel, a collective whose members
  /// disagree).
  virtual Status synchronize() = 0;
  /// Seconds on the device's clock from the other event's last record to this one's; both must have
  /// been reached. NaN if one of them records no time.
  virtual double secondsSince(Event &) { return std::numeric_limits<double>::quiet_NaN(); }
};

/// A point in a graph that counts the launches that have passed it.
class Mark {
public:
  virtual ~Mark() = default;

  /// True once this many launches, counted from the graph's first, have passed.
  virtual bool isPassed(int64_t launches) = 0;
  /// Blocks the calling thread until they have passed. Returns the reason if they cannot.
  virtual Status await(int64_t launches) = 0;
};

/// The difference between two launches of one graph; kernels find it in their Call.
struct LaunchParams {
  int64_t step = 0;         ///< visits of the segment so far
  int64_t microbatch = 0;   ///< position in this visit
  int64_t microbatches = 1; ///< of this visit
};

/// A rank's own part of a call that it shares with other ranks of its process.
struct OwnPart {
  void *const *addresses = nullptr; ///< of the operands in order, then of the results
  const kernels::Tensor *list = nullptr;
  const kernels::ParamRange *ranges = nullptr;
  const int64_t *rangesOf = nullptr;
  int64_t rangesCount = 0;
  void *workspace = nullptr;
  int64_t index = 0; ///< in the op's group
};

/// The shared call as that rank makes it.
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
  /// The name of its launches in profilers.
  void setLabel(std::string label) { label_ = std::move(label); }
  const std::string &label() const { return label_; }
  /// Number of nodes in it; each takes room in the device's queue when the graph is launched.
  int64_t nodes() const { return nodes_; }

protected:
  void setNodes(int64_t nodes) { nodes_ = nodes; }

private:
  std::string label_ = "graph";
  int64_t nodes_ = 0;
};

/// A collective among several that are issued together.
struct Part {
  const Collective *desc = nullptr;
  const char *label = "";
};

/// The purpose of a stream: a backend may prefer transfers over compute.
enum class StreamUse : uint8_t { Compute, Transfer };

/// Work of one rank in order. Labels and Calls are kept by address: they must live until the work
/// has ended, or as long as its graph. Only one thread at a time may use a rank's streams.
class Stream {
public:
  virtual ~Stream() = default;

  /// Enqueues a kernel. During capture the call's addresses are final; each launch provides step
  /// and microbatch.
  virtual Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) = 0;
  /// The same for a call that ranks of this process share; `own` is kept by address too. This is
  /// for backends that read calls when they are enqueued; others read both when the kernel runs.
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
  /// Enqueues the rank's parts of several gathers of one channel that do not depend on each other:
  /// as one transfer if the backend can, otherwise one after the other. All members issue the same
  /// gathers together.
  virtual Status gathers(Channel &channel, std::span<const Part> parts);

  /// Enqueues writing a word of `Host` memory with the progress of the stream, which other threads
  /// read meanwhile. A backend without support leaves the word unchanged.
  virtual Status writeWord(uint32_t *, uint32_t) { return Status::ok(); }

  virtual Status record(Event &event) = 0;
  /// During capture, once per mark: each launch of the graph passes the mark here.
  virtual Status mark(Mark &) {
    return Status(StatusCode::Unavailable, "this backend has no marks");
  }
  /// Work enqueued from now on starts after the event's latest record.
  virtual Status wait(Event &event) = 0;

  /// Begins to record work instead of running it. Other streams of the rank join by waiting for an
  /// event recorded during this capture, and must be joined back before it ends.
  virtual Status beginCapture() = 0;
  virtual Result<std::unique_ptr<Graph>> endCapture() = 0;
  /// Ends the capture that began on this stream without creating a graph, in any state: joined or
  /// not, or invalidated. Afterwards the rank's streams execute work again. Does nothing if no
  /// capture began.
  virtual void abandonCapture() = 0;
  /// Enqueues a whole graph: it starts after earlier work of this stream and ends before later.
  virtual Status launch(Graph &graph, const LaunchParams &params) = 0;
};

} // namespace shardc::hal
