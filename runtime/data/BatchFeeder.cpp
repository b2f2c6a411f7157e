// Computes which samples a data-parallel rank reads at a step and lays them out as rows. It keeps
// no state between calls, so a run can continue at any step.
#include "runtime/data/BatchFeeder.h"

#include <algorithm>

#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

/// Returns row `row` of an array with `width` entries per row; empty if the array is empty.
template <typename T> std::span<T> rowOf(std::span<T> array, size_t row, size_t width) {
  return array.empty() ? array : array.subspan(row * width, width);
}

} // namespace

/// An evaluation of all validation data (`OrderKind::Whole`) has as many microbatches as all
/// samples need; the last one may be filled up with samples that do not count.
Result<BatchFeeder> BatchFeeder::create(const DataSource &source, const BatchShape &shape,
                                        const OrderSpec &order, int64_t samples) {
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

int64_t BatchFeeder::sampleIndex(int64_t step, int64_t microbatch, int64_t rank,
                                 int64_t row) const {
  return order_.placeOf(positionOf(step, microbatch), rank, row);
}

int64_t BatchFeeder::positionOf(int64_t step, int64_t microbatch) const {
  return shape_.samplesBefore + step * shape_.globalBatch + microbatch * shape_.round();
}

/// Fills microBatch x sequenceLength entries of each array. Samples beyond the end of an evaluation
/// get a loss mask of zeros, so that they do not change the mean.
Status BatchFeeder::fill(int64_t step, int64_t microbatch, int64_t rank,
                         const MicroBatch &out) const {
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
        report::DataTooShort, "{} has {} samples, enough for {} steps of {}{}; step {} needs more",
        source_->name(), source_->numSamples(), numSteps(), shape_.globalBatch,
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

} // namespace shardc::data
