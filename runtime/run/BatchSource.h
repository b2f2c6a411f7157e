// The interface through which the run loop gets its data. A source writes the batch for a step, a
// microbatch number and a data-parallel index. runtime/data implements it for runs; tests have
// small implementations.
#pragma once

#include <cstdint>

#include "runtime/base/Status.h"

namespace shardc::run {

/// The ring of the plan that is filled: cell @feed or @eval_feed.
enum class FeedKind : uint8_t { Train, Eval };

/// A rank's part of each sequence. The sequence has 2·count equal chunks, and the rank gets chunks
/// `index` and 2·count-1-index, so that all ranks have equal work under a causal mask. With count
/// 1, it gets the whole sequence.
struct SequenceSlice {
  int64_t index = 0, count = 1;
};

/// The optional field of an entry, in addition to the fields that each batch has.
enum class FeedMore : uint8_t { None, Places, Reference };

/// One entry of a ring, by field, for B sequences (or slices of them) of S tokens.
struct FeedEntry {
  int64_t batch = 0, sequence = 0; ///< B and S
  SequenceSlice slice;
  int32_t *tokens = nullptr;    ///< B * S
  int32_t *labels = nullptr;    ///< B * S
  float *mask = nullptr;        ///< B * S
  int32_t *positions = nullptr; ///< B * S
  int32_t *docs = nullptr;      ///< B * S: position at which the token's document begins
  uint8_t *samples = nullptr;   ///< B int64, unaligned: the sample's index in the run
  int32_t *places = nullptr;    ///< B * S: the token's position in its sequence; null: none
  float *reference = nullptr;   ///< B * S: the reference for preference_loss; null: none

  /// Size of an entry in 4-byte words.
  static constexpr int64_t words(int64_t batch, int64_t sequence, FeedMore more = FeedMore::None) {
    return (more == FeedMore::None ? 5 : 6) * batch * sequence + 2 * batch;
  }
  /// The entry at an address.
  static FeedEntry at(int32_t *words, int64_t batch, int64_t sequence,
                      FeedMore more = FeedMore::None);
};

class BatchSource {
public:
  virtual ~BatchSource() = default;

  /// Selects a validation set, or the test data, for the evaluations that follow.
  virtual void evaluate(int64_t /*set*/, bool /*isTest*/) {}

  /// Writes microbatch `microbatch` of `microbatches` for step or evaluation number `visit` of the
  /// whole job. Does not allocate after its first call, except on failure.
  virtual Status fill(FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
                      int64_t dataIndex, const FeedEntry &entry) = 0;
};

} // namespace shardc::run
