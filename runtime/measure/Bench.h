// Times one piece of work on the device of this process: a kernel call, a copy or a collective,
// issued as in a run and captured several times in a graph. Operands contain random numbers,
// because the power that products draw depends on them. All ranks of the job must make the same
// calls; for each piece, they agree on the number of repetitions.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/Rates.h"
#include "runtime/hal/Backend.h"
#include "runtime/hal/Peers.h"

namespace shardc::measure {

struct BenchOptions {
  std::function<const kernels::Kernel *(std::string_view op)> findKernel;
  /// Chooses, once and before it is timed, how such a call runs; if empty, nothing is chosen.
  std::function<void(std::string_view op, const kernels::Call &call)> choose;
  /// Whether the job was asked to end.
  std::function<bool()> isAsked;
  double secondsEach = 0.3; ///< time for the repetitions of one piece
  double secondsMax = 0.4;  ///< a longer call is timed only once
};

/// The timings of one piece of work on all ranks.
struct Timing {
  std::vector<double> seconds; ///< seconds of one call, by rank
  std::string refused;         ///< why some rank cannot do the work; `seconds` is then empty
};

class Bench {
public:
  /// `backend` must have one device in this process. `peers` connects to the other ranks, or is
  /// null. Both must outlive the object.
  static Result<std::unique_ptr<Bench>> create(hal::Backend &backend, hal::Peers *peers,
                                               BenchOptions options);

  /// Times work inside the device: any kind except collectives.
  Result<Timing> compute(const Rate &work);
  /// Times a collective of this rank's group, in which `index` is the rank's number.
  Result<Timing> collective(const Rate &work, hal::Channel &channel, int index);

  /// Returns the seconds of all ranks. Aborted if one of them was asked to end.
  Result<std::vector<double>> exchange(double seconds);
  hal::Device &device() const { return *backend_.devices().front(); }
  hal::Peers *peers() const { return peers_; }
  hal::Backend &backend() const { return backend_; }

private:
  using Enqueue = std::function<Status(hal::Stream &)>;

  Bench(hal::Backend &backend, hal::Peers *peers, BenchOptions options)
      : backend_(backend), peers_(peers), options_(std::move(options)) {}

  Status makeCall(const Rate &work, kernels::Call &call);
  Status makeProduct(const Rate &work, kernels::Call &call);
  Status makeAttention(const Rate &work, kernels::Call &call);
  Result<Enqueue> enqueueOf(const Rate &work);
  Result<void *> allocate(hal::MemoryKind kind, int64_t bytes);
  Status fillRandom(void *to, int64_t bytes, DType dtype);
  Status addTensor(kernels::Tensor &to, DType dtype, std::initializer_list<int64_t> shape);
  Result<Timing> time(const Result<Enqueue> &enqueue, bool isTogether);
  Result<double> timeOnce(const std::function<Status()> &work, bool isTogether);
  Result<double> timeRepeated(const Enqueue &enqueue, double once, bool isTogether);

  hal::Backend &backend_;
  hal::Peers *peers_;
  BenchOptions options_;
  std::unique_ptr<hal::Stream> stream_;
  std::unique_ptr<hal::Event> begin_, end_;
  std::vector<std::unique_ptr<hal::Buffer>> buffers_; ///< buffers of the piece that is being timed
  kernels::Call call_;
  hal::Collective collective_;
};

} // namespace shardc::measure
