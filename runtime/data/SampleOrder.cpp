#include "runtime/data/SampleOrder.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "runtime/base/Reports.h"
#include "runtime/data/Sample.h"
#include "runtime/data/TorchRandom.h"

namespace shardc::data {

/// Allocates the random orders here, so that no step fails for lack of memory. Two passes are kept,
/// since a batch may extend over the boundary between them.
Result<SampleOrder> SampleOrder::create(const OrderSpec &spec, const BatchShape &shape,
                                        int64_t samples, const std::string &name) {
  SampleOrder order(spec, shape, samples);
  if (spec.kind != OrderKind::Cyclic && spec.kind != OrderKind::Batch)
    return order;
  const bool isCyclic = spec.kind == OrderKind::Cyclic;
  const int64_t round = isCyclic ? shape.round() : shape.globalBatch;
  if (samples < round)
    return makeStatus(report::DataTooShort,
                      "{} has {} samples, fewer than the {} of one {}, so that no pass over it has "
                      "any",
                      name, samples, round, isCyclic ? "microbatch of all ranks" : "global batch");
  order.shuffledTogether_ = !isCyclic        ? samples
                            : spec.isSharded ? samples / round * shape.microBatch
                                             : samples / shape.microBatch * shape.microBatch;
  // Bytes of an element in the orders of two passes.
  constexpr int64_t kBytes = 2 * sizeof(uint32_t);
  if (order.shuffledTogether_ > spec.bytesMax / kBytes ||
      order.shuffledTogether_ > std::numeric_limits<uint32_t>::max())
    return makeStatus(StatusCode::Exhausted,
                      "the random order of the {} samples of {} needs more than the limit of {} "
                      "bytes",
                      order.shuffledTogether_, name, spec.bytesMax);
  try {
    order.passes_ = std::make_unique<Passes>();
    for (std::vector<uint32_t> &pass : order.passes_->orders)
      pass.resize(static_cast<size_t>(order.shuffledTogether_));
    if (!isCyclic && !spec.costs.empty())
      for (std::vector<uint32_t> &batch : order.passes_->sorted)
        batch.resize(static_cast<size_t>(shape.globalBatch));
  } catch (const std::bad_alloc &) {
    return makeStatus(StatusCode::Exhausted, "not enough memory for the random order of {}", name);
  }
  return order;
}

/// Returns an element of the permutation of a pass.
int64_t SampleOrder::shuffled(int64_t pass, int64_t index) const {
  std::lock_guard lock(passes_->mutex);
  return shuffledLocked(pass, index);
}

/// Computes the order of a pass at its first use. It replaces the order that was not used last.
int64_t SampleOrder::shuffledLocked(int64_t pass, int64_t index) const {
  size_t at = passes_->numbers[0] == pass ? 0 : passes_->numbers[1] == pass ? 1 : 2;
  if (at == 2) {
    at = 1 - passes_->last;
    uint64_t first = spec_.kind == OrderKind::Batch ? spec_.seed : 0;
    torchPermutation(first + static_cast<uint64_t>(pass), passes_->orders[at]);
    passes_->numbers[at] = pass;
  }
  passes_->last = at;
  return passes_->orders[at][static_cast<size_t>(index)];
}

int64_t SampleOrder::sampleOfLocked(int64_t batch, int64_t index) const {
  const int64_t inPass = samples_ / shape_.globalBatch; // an incomplete last batch is dropped
  return shuffledLocked(batch / inPass, batch % inPass * shape_.globalBatch + index);
}

int64_t SampleOrder::sampleOf(int64_t batch, int64_t index) const {
  std::lock_guard lock(passes_->mutex);
  return sampleOfLocked(batch, index);
}

/// Returns the index in its batch of the sample that is at `index` by decreasing cost.
int64_t SampleOrder::byCost(int64_t batch, int64_t index) const {
  std::lock_guard lock(passes_->mutex);
  size_t at = passes_->batches[0] == batch ? 0 : passes_->batches[1] == batch ? 1 : 2;
  if (at == 2) {
    at = 1 - passes_->lastBatch;
    std::vector<uint32_t> &sorted = passes_->sorted[at];
    std::iota(sorted.begin(), sorted.end(), 0u);
    auto cost = [&](uint32_t number) {
      return spec_.costs[static_cast<size_t>(sampleOfLocked(batch, number))];
    };
    std::ranges::sort(sorted, [&](uint32_t a, uint32_t b) {
      int64_t first = cost(a), second = cost(b);
      return first != second ? first > second : a < b;
    });
    passes_->batches[at] = batch;
  }
  passes_->lastBatch = at;
  return passes_->sorted[at][static_cast<size_t>(index)];
}

int64_t SampleOrder::placeOf(int64_t position, int64_t rank, int64_t row) const {
  if (spec_.kind != OrderKind::Batch)
    return position + rank * shape_.microBatch + row;
  // The rows of a rank are consecutive. Samples that are neighbours by cost go to different ranks,
  // in alternating directions, so that no rank always takes the more expensive ones.
  const int64_t batch = position / shape_.globalBatch;
  const int64_t own = position % shape_.globalBatch / shape_.dataParallel + row;
  if (spec_.costs.empty())
    return batch * shape_.globalBatch + own * shape_.dataParallel + rank;
  const int64_t turn = own % 2 == 0 ? rank : shape_.dataParallel - 1 - rank;
  return batch * shape_.globalBatch + byCost(batch, own * shape_.dataParallel + turn);
}

/// `position` counts samples before the microbatch. For `Cyclic`, each pass has a permutation of
/// its own, and either all ranks share it in turn, or each has a part of the data for itself
/// (`isSharded`).
SampleOrder::Choice SampleOrder::choose(int64_t position, int64_t rank, int64_t row) const {
  const int64_t inOrder = position + rank * shape_.microBatch + row;
  switch (spec_.kind) {
  case OrderKind::Sequential:
    return {inOrder};
  case OrderKind::Whole:
    return inOrder < samples_ ? Choice{inOrder} : Choice{inOrder % samples_, false};
  case OrderKind::Batch: {
    const int64_t place = placeOf(position, rank, row);
    return {sampleOf(place / shape_.globalBatch, place % shape_.globalBatch)};
  }
  case OrderKind::Cyclic:
    break;
  }
  // At the end of a pass, samples that do not fill a microbatch of all ranks are dropped.
  const int64_t inPass = samples_ / shape_.round() * shape_.round();
  const int64_t pass = position / inPass, begin = position % inPass;
  if (spec_.isSharded)
    return {rank * shuffledTogether_ + shuffled(pass, begin / shape_.dataParallel + row)};
  return {shuffled(pass, begin + rank + row * shape_.dataParallel)};
}

int64_t SampleOrder::numSteps() const {
  return spec_.kind == OrderKind::Sequential
             ? std::max<int64_t>(samples_ - shape_.samplesBefore, 0) / shape_.globalBatch
             : std::numeric_limits<int64_t>::max();
}

} // namespace shardc::data
