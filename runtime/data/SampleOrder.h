// The order in which a run takes the samples of a source: by position; in a new random order for
// each pass, as Megatron's random sampler or Megatron-Bridge's sampler of whole batches takes them;
// or all of them once for each evaluation.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

/// How a global batch is divided; globalBatch = microBatch * dataParallel * number of microbatches.
struct BatchShape {
  int64_t globalBatch = 1;
  int64_t microBatch = 1;
  int64_t dataParallel = 1;
  int64_t samplesBefore = 0; ///< taken by the run before the first of these batches

  /// Number of samples that all ranks take together in a microbatch.
  int64_t round() const { return microBatch * dataParallel; }
};

enum class OrderKind : uint8_t {
  Sequential, ///< by position; ends with the source
  Cyclic,     ///< a new random order in each pass over the source; no end
  Batch,      ///< also random, but by whole global batches for any number of ranks
  Whole,      ///< an evaluation takes each sample once, in order
};

struct OrderSpec {
  OrderKind kind = OrderKind::Sequential;
  /// Cyclic: whether each rank shuffles its own share of the samples; otherwise all ranks share one
  /// order.
  bool isSharded = true;
  /// Memory limit of the permutations in bytes.
  int64_t bytesMax = int64_t{32} << 30;
  /// Batch: the seed of the first pass; pass p has the seed + p. Cyclic: pass p has the seed p.
  uint64_t seed = 0;
  /// Batch: the cost of each sample, used to equalise the cost of microbatches on all ranks. Must
  /// stay valid as long as the order. Empty: the samples of a batch are assigned to ranks in turn,
  /// as in Megatron-Bridge.
  std::span<const int64_t> costs;
};

class SampleOrder {
public:
  /// Creates the order of a source with `samples` samples. InvalidInput if a random order has fewer
  /// samples than one microbatch of all ranks or, by whole batches, one batch; Exhausted if it
  /// exceeds the memory limit. `name` is the name of the source, for messages.
  static Result<SampleOrder> create(const OrderSpec &spec, const BatchShape &shape, int64_t samples,
                                    const std::string &name);

  OrderKind kind() const { return spec_.kind; }

  /// A sample of the source, and whether it counts. If an evaluation takes all samples once, the
  /// last microbatch may need more samples than there are.
  struct Choice {
    int64_t sample;
    bool counts = true;
  };
  /// Returns the sample in `row` of the microbatch of `rank`. `position` is the number of samples
  /// that all ranks of the run, or of an evaluation of all samples, have taken before that
  /// microbatch. Thread-safe; allocates nothing.
  Choice choose(int64_t position, int64_t rank, int64_t row) const;

  /// Returns the number of that sample among all that the run takes. It does not depend on the
  /// number of ranks, except for a cyclic order. The random numbers of samples are derived from it.
  int64_t placeOf(int64_t position, int64_t rank, int64_t row) const;

  /// Number of steps for which there are complete batches.
  int64_t numSteps() const;

private:
  /// The orders of two passes, since some stages of a pipeline may already be in the next pass.
  struct Passes {
    std::mutex mutex;
    std::array<std::vector<uint32_t>, 2> orders;
    std::array<int64_t, 2> numbers = {-1, -1};
    size_t last = 0; ///< index of the order that was used last
    /// For two batches, the indices of their samples by decreasing cost.
    std::array<std::vector<uint32_t>, 2> sorted;
    std::array<int64_t, 2> batches = {-1, -1};
    size_t lastBatch = 0;
  };

  SampleOrder(const OrderSpec &spec, const BatchShape &shape, int64_t samples)
      : spec_(spec), shape_(shape), samples_(samples) {}
  int64_t shuffled(int64_t pass, int64_t index) const;
  int64_t shuffledLocked(int64_t pass, int64_t index) const;
  /// Returns the sample at `index` of a batch.
  int64_t sampleOf(int64_t batch, int64_t index) const;
  int64_t sampleOfLocked(int64_t batch, int64_t index) const;
  int64_t byCost(int64_t batch, int64_t index) const;

  OrderSpec spec_;
  BatchShape shape_;
  int64_t samples_;
  int64_t shuffledTogether_ = 0; ///< number of elements of a permutation
  std::unique_ptr<Passes> passes_;
};

} // namespace shardc::data
