// Combines samples into microbatches: selects the samples of a rank at a step, and writes them
// directly into the arrays that the step reads.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/Status.h"
#include "runtime/data/Sample.h"
#include "runtime/data/SampleOrder.h"

namespace shardc::data {

/// Arrays of one microbatch of B samples of S tokens, row by row. Empty arrays are not written.
struct MicroBatch {
  std::span<int32_t> tokens;         ///< B * S
  std::span<int32_t> labels;         ///< B * S
  std::span<float> lossMask;         ///< B * S
  std::span<int32_t> positionIds;    ///< B * S, or empty
  std::span<int32_t> documentStarts; ///< B * (S + 1), or empty; see Sample
  std::span<int32_t> numDocuments;   ///< B, or empty
  std::span<float> reference;        ///< B * S, or empty; see Sample
};

class BatchFeeder {
public:
  /// `source` must outlive the feeder. InvalidInput, naming all sizes, if they do not divide each
  /// other, or if a random order has too few samples. `samples`: the number of samples that the
  /// order covers, of a source without an end.
  static Result<BatchFeeder> create(const DataSource &source, const BatchShape &shape,
                                    const OrderSpec &order = {},
                                    int64_t samples = DataSource::kUnbounded);

  /// Number of microbatches of a step, or of an evaluation.
  int64_t numMicrobatches() const { return numMicrobatches_; }
  const BatchShape &shape() const { return shape_; }

  /// Returns the number, within the run, of the sample in `row` of a rank's microbatch:
  /// samplesBefore + step * globalBatch + (microbatch * dataParallel + rank) * microBatch + row,
  /// except in the order by whole batches (SampleOrder::placeOf).
  int64_t sampleIndex(int64_t step, int64_t microbatch, int64_t rank, int64_t row) const;

  /// Number of steps for which there are complete batches, after shape().samplesBefore samples.
  int64_t numSteps() const { return order_.numSteps(); }

  /// Writes the microbatch to `out`. Thread-safe; allocates nothing unless it fails. InvalidInput
  /// if the data end before this step or a file changed.
  Status fill(int64_t step, int64_t microbatch, int64_t rank, const MicroBatch &out) const;

private:
  /// Returns the number of samples that all ranks have taken before a microbatch.
  int64_t positionOf(int64_t step, int64_t microbatch) const;
  BatchFeeder(const DataSource &source, const BatchShape &shape, int64_t numMicrobatches,
              SampleOrder order)
      : source_(&source), shape_(shape), numMicrobatches_(numMicrobatches),
        order_(std::move(order)) {}

  const DataSource *source_;
  BatchShape shape_;
  int64_t numMicrobatches_;
  SampleOrder order_;
};

} // namespace shardc::data
