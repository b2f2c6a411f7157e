// A queue of one rank, the events that order queues, and graphs: work that is recorded once and
// then launched as a whole. All calls but Event::synchronize return at once, before the work has
// run.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "kernels/api/Kernel.h"
#include "runtime/base/Status.h"
#include "runtime/hal/Channel.h"

namespace shardc::hal {

/// A point in a stream. Recording again moves it; whoever waits means the latest record before the
/// wait.
class Event {
public:
  virtual ~Event() = default;

  /// True once the last record has been reached, and for an event that was never recorded.
  virtual bool isDone() = 0;
  /// Blocks the calling thread until the last record has been reached. Returns why the backend's
  /// work cannot go on (deadlock, a kernel that failed, a collective whose members disagree)
  /// instead of waiting for ever.
  virtual Status synchronize() = 0;
  /// Seconds on the device's clock from where the other was last recorded to where this one was;
  /// both have been reached. Not a number if one of them keeps no time.
  virtual double secondsSince(Event &) { return std::numeric_limits<double>::quiet_NaN(); }
};

/// What a test plants in a stream: an error of a channel, as its library finds one, or of the
/// device.
enum class PlantedError : uint8_t { Channel, Device };

/// A place in a graph that tells the host how many launches have come past it.
class Mark {
public:
  virtual ~Mark() = default;

  /// True once that many launches, counted from the graph's first, have passed.
  virtual bool isPassed(int64_t launches) = 0;
  /// Blocks the calling thread until they have. Returns why they will not, as Event does.
  virtual Status await(int64_t launches) = 0;
};

/// What differs between two launches of one graph; kernels find it in their Call.
struct LaunchParams {
  int64_t step = 0;         ///< visits of the segment so far
  int64_t microbatch = 0;   ///< position in this visit
  int64_t microbatches = 1; ///< of this visit
};

/// Captured work of one rank. Destroy it only when no launch of it is under way.
class Graph {
public:
  virtual ~Graph() = default;
  /// As profilers show its launches.
  void setLabel(std::string label) { label_ = std::move(label); }
  const std::string &label() const { return label_; }
  /// Pieces of work in it; each takes room in the device's queue when the graph is launched.
  int64_t nodes() const { return nodes_; }

protected:
  void setNodes(int64_t nodes) { nodes_ = nodes; }

private:
  std::string label_ = "graph";
  int64_t nodes_ = 0;
};

/// Work of one rank in order. Labels and Calls are kept by address: they live until the work has
/// ended, or as long as the graph that captured them. One thread at a time uses a rank's streams.
class Stream {
public:
  virtual ~Stream() = default;

  /// Queues a kernel. Under capture the call's addresses are final; step and microbatch come with
  /// each launch.
  virtual Status launch(kernels::KernelFn kernel, kernels::Call &call, const char *label) = 0;
  /// Queues a copy between any two memories of this rank.
  virtual Status copy(void *to, const void *from, int64_t bytes, const char *label) = 0;
  /// Queues setting `bytes` bytes to `value`.
  virtual Status fill(void *to, uint8_t value, int64_t bytes, const char *label) = 0;
  /// Queues this rank's part in a collective of a channel that it is a member of.
  virtual Status collective(Channel &channel, const Collective &desc, const char *label) = 0;

  /// Queues writing a word of `Host` memory, which other threads read while work goes on: how far
  /// the stream has come. A backend that cannot leaves the word as it is.
  virtual Status writeWord(uint32_t *, uint32_t) { return Status::ok(); }

  /// For tests: what is queued from here on does not begin, and who waits for it is told of an
  /// error.
  virtual Status plantError(PlantedError, const Channel &) {
    return Status(StatusCode::Unavailable, "this backend plants no errors");
  }

  virtual Status record(Event &event) = 0;
  /// Under capture, once for a mark: each launch of the graph passes it here.
  virtual Status mark(Mark &) {
    return Status(StatusCode::Unavailable, "this backend has no marks");
  }
  /// Work queued from here on starts after the event's latest record.
  virtual Status wait(Event &event) = 0;

  /// From here on work is recorded instead of run. Other streams of the rank join by waiting for an
  /// event recorded under this capture, and must be joined back before it ends.
  virtual Status beginCapture() = 0;
  virtual Result<std::unique_ptr<Graph>> endCapture() = 0;
  /// Ends the capture that began here without a graph, whatever state it is in: joined or not, or
  /// spoiled by what was captured. The rank's streams run what they are given again. Does nothing
  /// where no capture began.
  virtual void abandonCapture() = 0;
  /// Queues a whole graph: it starts after what is in this stream and ends before what follows.
  virtual Status launch(Graph &graph, const LaunchParams &params) = 0;
};

} // namespace shardc::hal
