// A stream of CUDA's as kernels see it, with what they keep of it from one launch to the next: what
// was enqueued last, and the first error of a library. Kernels find it in call.stream. One thread
// at a time uses it.
//
// A hand-written kernel may be resident on the multiprocessors while its predecessor in the stream
// still runs (a programmatic dependent launch). It first waits for the predecessor's end
// (common.cuh), so the launch leaves no gap, and everything that the predecessor saw complete is
// complete for it too. Only kernels may precede such a launch; other work must be announced here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/api/Kernel.h"
#include "kernels/cuda/Context.h"
#include "kernels/cuda/Launch.h"
#include "runtime/base/Report.h"

namespace shardc::kernels::cuda {

class Queue {
public:
  /// The context outlives the queue; so does the stream, on which the queue calls nothing later.
  Queue(Context &context, cudaStream_t stream) : context_(context), stream_(stream) {}
  Queue(const Queue &) = delete;
  Queue &operator=(const Queue &) = delete;

  operator cudaStream_t() const { return stream_; }
  Context &context() const { return context_; }

  /// Whether the hand-written kernel enqueued next may be a dependent launch; records the launch.
  bool mayDepend();
  /// Announces kernels of a library.
  void noteLibrary() { last_ = Last::Library; }
  /// Announces other work: a copy, a wait, a collective.
  void noteOther() { last_ = Last::Other; }

  /// Keeps an error of a library, since kernels return nothing, unless one is already kept: the
  /// first error is the cause of the others.
  void reportError(std::string text);
  /// Returns and clears the error, if there is one. The backend asks after each launch.
  std::optional<Report> takeError();

private:
  enum class Last : uint8_t { Other, Library, Own };

  bool runsWaits();

  Context &context_;
  cudaStream_t stream_;
  Last last_ = Last::Other;
  int computeCapabilityMajor_ = 0; ///< 0: not asked yet
  std::optional<Report> error_;
};

} // namespace shardc::kernels::cuda
