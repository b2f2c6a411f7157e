// Combines samples into microbatches: selects the samples of a rank at a step, and writes them
// directly into the arrays that the step reads. Computes which samples a data-parallel rank reads
// at a step and lays them out as rows. It keeps no state between calls, so a run can continue at
// any step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "runtime/base/Reports.h"
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
  /// An evaluation of all validation data (`OrderKind::Whole`) has as many microbatches as all
  /// samples need; the last one may be filled up with samples that do not count.
  static Result<BatchFeeder> create(const DataSource &source, const BatchShape &shape,
                                    const OrderSpec &order = {},
                                    int64_t samples = DataSource::kUnbounded) {
    int64_t together = 0;
    if (shape.globalBatch < 1 || shape.microBatch < 1 || shape.dataParallel < 1 ||
        __builtin_mul_overflow(shape.microBatch, shape.dataParallel, &together) ||
        shape.globalBatch % together != 0)
      return makeStatus(report::BatchDoesNotDivide, shape.globalBatch, shape.microBatch,
                        shape.dataParallel);
    samples = std::min(samples, source.numSamples());
    ASSIGN_OR_RETURN(SampleOrder made, SampleOrder::create(order, shape, samples, source.name()));
    int64_t microbatches = shape.globalBatch / together;
    if (order.kind == OrderKind::Whole)
      microbatches = samples / together + (samples % together != 0 ? 1 : 0);
    return BatchFeeder(source, shape, microbatches, std::move(made));
  }

  /// Number of microbatches of a step, or of an evaluation.
  int64_t numMicrobatches() const { return numMicrobatches_; }
  const BatchShape &shape() const { return shape_; }

  /// Returns the number, within the run, of the sample in `row` of a rank's microbatch:
  /// samplesBefore + step * globalBatch + (microbatch * dataParallel + rank) * microBatch + row,
  /// except in the order by whole batches (SampleOrder::placeOf).
  int64_t sampleIndex(int64_t step, int64_t microbatch, int64_t rank, int64_t row) const {
    return order_.placeOf(positionOf(step, microbatch), rank, row);
  }

  /// Number of steps for which there are complete batches, after shape().samplesBefore samples.
  int64_t numSteps() const { return order_.numSteps(); }

  /// Writes the microbatch to `out`. Thread-safe; allocates nothing unless it fails. InvalidInput
  /// if the data end before this step or a file changed.
  /// Fills microBatch x sequenceLength entries of each array. Samples beyond the end of an
  /// evaluation get a loss mask of zeros, so that they do not change the mean.
  Status fill(int64_t step, int64_t microbatch, int64_t rank, const MicroBatch &out) const {
    SHARDC_CHECK(microbatch >= 0 && microbatch < numMicrobatches_ && rank >= 0 &&
                     rank < shape_.dataParallel,
                 "microbatch {} of {}, rank {} of {}", microbatch, numMicrobatches_, rank,
                 shape_.dataParallel);
    auto rows = static_cast<size_t>(shape_.microBatch);
    auto width = static_cast<size_t>(source_->sequenceLength());
    SHARDC_CHECK(out.tokens.size() == rows * width && out.labels.size() == rows * width &&
                     out.lossMask.size() == rows * width,
                 "arrays of {} tokens for {} rows of {}", out.tokens.size(), rows, width);
    if (step < 0 || step >= numSteps())
      return makeStatus(
          report::DataTooShort,
          "{} has {} samples, enough for {} steps of {}{}; step {} needs more", source_->name(),
          source_->numSamples(), numSteps(), shape_.globalBatch,
          shape_.samplesBefore > 0 ? fmt::format(" after the first {}", shape_.samplesBefore) : "",
          step);
    // An evaluation of all validation data begins again at the first sample each time.
    const int64_t position = positionOf(order_.kind() == OrderKind::Whole ? 0 : step, microbatch);
    for (size_t row = 0; row < rows; ++row) {
      Sample sample{rowOf(out.tokens, row, width),
                    rowOf(out.labels, row, width),
                    rowOf(out.lossMask, row, width),
                    rowOf(out.positionIds, row, width),
                    rowOf(out.documentStarts, row, width + 1),
                    0,
                    rowOf(out.reference, row, width)};
      SampleOrder::Choice choice = order_.choose(position, rank, static_cast<int64_t>(row));
      RETURN_IF_ERROR(source_->sample(choice.sample, sample));
      if (!choice.counts)
        std::ranges::fill(sample.lossMask, 0.0f);
      if (!out.numDocuments.empty())
        out.numDocuments[row] = sample.numDocuments;
    }
    return Status::ok();
  }

private:
  /// Returns row `row` of an array with `width` entries per row; empty if the array is empty.
  template <typename T> static std::span<T> rowOf(std::span<T> array, size_t row, size_t width) {
    return array.empty() ? array : array.subspan(row * width, width);
  }

  /// Returns the number of samples that all ranks have taken before a microbatch.
  int64_t positionOf(int64_t step, int64_t microbatch) const {
    return shape_.samplesBefore + step * shape_.globalBatch + microbatch * shape_.round();
  }

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
