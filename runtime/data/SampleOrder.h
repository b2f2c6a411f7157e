// The order in which a run takes the samples of a source: one after the other, in a new random
// order for each pass as Megatron's random sampler or Megatron-Bridge's sampler of whole batches
// takes them, or all of them once for each evaluation.
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
  int64_t samplesBefore = 0; ///< that the run takes before the first of these batches

  /// Samples that all ranks take together in a microbatch.
  int64_t round() const { return microBatch * dataParallel; }
};

enum class OrderKind : uint8_t {
  Sequential, ///< by position; ends with the source
  Cyclic,     ///< each pass over the source in a random order of its own; has no end
  Batch,      ///< likewise at random, by whole global batches, whatever the number of ranks
  Whole,      ///< an evaluation takes each sample once, in order
};

struct OrderSpec {
  OrderKind kind = OrderKind::Sequential;
  /// Cyclic: each rank shuffles a share of its own, else all ranks share one order.
  bool isSharded = true;
  /// Memory limit of the permutations.
  int64_t bytesMax = int64_t{32} << 30;
  /// Batch: of the first pass; pass p has the seed + p. Cyclic: pass p has the seed p.
  uint64_t seed = 0;
  /// Batch: the cost of each sample, if microbatches are to cost the same on each rank; valid as
  /// long as the order. Empty: a batch's samples are assigned to ranks in turn, as in
  /// Megatron-Bridge.
  std::span<const int64_t> costs;
};

class SampleOrder {
public:
  /// Of a source with `samples` samples. InvalidInput if a random order has not one microbatch of
  /// all ranks, or by whole batches not one batch, Exhausted beyond the limit of memory. `name` is
  /// the source's, for messages.
  static Result<SampleOrder> create(const OrderSpec &spec, const BatchShape &shape, int64_t samples,
                                    const std::string &name);

  OrderKind kind() const { return spec_.kind; }

  /// A sample of the source, and whether it counts: where an evaluation takes all samples once, the
  /// last microbatch may need more than there are.
  struct Choice {
    int64_t sample;
    bool counts = true;
  };
  /// The sample in `row` of the microbatch of `rank`; `position` is the number of samples that the
  /// run, or the evaluation of the whole, has taken before that microbatch on any rank. Safe from
  /// several threads at once; allocates nothing.
  Choice choose(int64_t position, int64_t rank, int64_t row) const;

  /// The number of that sample among all that the run takes; whatever the number of ranks, but for
  /// a cyclic order. Samples have their random numbers by it.
  int64_t placeOf(int64_t position, int64_t rank, int64_t row) const;

  /// Number of steps of whole batches that it has samples for.
  int64_t numSteps() const;

private:
  /// The orders of two passes: stages of a pipeline may be in the next one already.
  struct Passes {
    std::mutex mutex;
    std::array<std::vector<uint32_t>, 2> orders;
    std::array<int64_t, 2> numbers = {-1, -1};
    size_t last = 0; ///< the one that was used last
    /// Samples of two batches, by decreasing cost; by their numbers in the batch.
    std::array<std::vector<uint32_t>, 2> sorted;
    std::array<int64_t, 2> batches = {-1, -1};
    size_t lastBatch = 0;
  };

  SampleOrder(const OrderSpec &spec, const BatchShape &shape, int64_t samples)
      : spec_(spec), shape_(shape), samples_(samples) {}
  int64_t shuffled(int64_t pass, int64_t index) const;
  int64_t shuffledLocked(int64_t pass, int64_t index) const;
  /// The sample at `index` of a batch.
  int64_t sampleOf(int64_t batch, int64_t index) const;
  int64_t sampleOfLocked(int64_t batch, int64_t index) const;
  int64_t byCost(int64_t batch, int64_t index) const;

  OrderSpec spec_;
  BatchShape shape_;
  int64_t samples_;
  int64_t shuffledTogether_ = 0; ///< elements of a permutation
  std::unique_ptr<Passes> passes_;
};

} // namespace shardc::data
