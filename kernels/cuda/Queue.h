// A CUDA stream for kernels, with the state that they share between launches: what was enqueued
// last, and the first library error. Kernels find it in call.stream. Not thread-safe.
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

/// The kernels' view of one stream of one rank. The backend that owns the stream creates it and
/// tells it about other work.
class Queue {
public:
  /// The context must outlive the queue. The stream must too, but the destructor does not use it.
  Queue(Context &context, cudaStream_t stream) : context_(context), stream_(stream) {}
  Queue(const Queue &) = delete;
  Queue &operator=(const Queue &) = delete;

  operator cudaStream_t() const { return stream_; }
  /// The settings and caches that kernels on this queue use.
  Context &context() const { return context_; }

  /// Whether the next hand-written kernel may be a dependent launch. Records that launch as the
  /// last one.
  bool mayDepend();
  /// Call after enqueuing library kernels.
  void noteLibrary() { last_ = Last::Library; }
  /// Call after enqueuing other work: a copy, a wait, a collective.
  void noteOther() { last_ = Last::Other; }

  /// Records an error of a library, because kernels return nothing. Only the first error is kept,
  /// since it causes the later ones.
  void reportError(std::string text);
  /// Returns and clears the recorded error. The backend calls it after each launch.
  std::optional<Report> takeError();

private:
  enum class Last : uint8_t { Other, Library, Own };

  Context &context_;
  cudaStream_t stream_;
  Last last_ = Last::Other;
  std::optional<Report> error_;
};

} // namespace shardc::kernels::cuda
