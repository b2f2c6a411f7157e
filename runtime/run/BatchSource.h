// The interface of the run loop to its data: writes the microbatch of a step, a microbatch number
// and a data-parallel coordinate. runtime/data implements it for runs; tests have small
// implementations.
#pragma once

#include <cstdint>

#include "runtime/base/Status.h"

namespace shardc::run {

/// The ring of the plan that is fed: the cell @feed or @eval_feed.
enum class FeedKind : uint8_t { Train, Eval };

/// A rank's part of each sequence: of 2·count equal chunks, those with the numbers `index` and
/// 2·count-1-index, so that all ranks have equal work under a causal mask; the whole sequence if
/// count is 1.
struct SequenceSlice {
  int64_t index = 0, count = 1;
};

/// What an entry has beside the fields of each batch.
enum class FeedMore : uint8_t { None, Places, Reference };

/// One entry of a ring, field by field, for B sequences, or slices of them, of S tokens.
struct FeedEntry {
  int64_t batch = 0, sequence = 0; ///< B and S
  SequenceSlice slice;
  int32_t *tokens = nullptr;    ///< B * S
  int32_t *labels = nullptr;    ///< B * S
  float *mask = nullptr;        ///< B * S
  int32_t *positions = nullptr; ///< B * S
  int32_t *docs = nullptr;      ///< B * S: position at which the token's document begins
  uint8_t *samples = nullptr;   ///< B int64, unaligned: the sample's index in the run
  int32_t *places = nullptr;    ///< B * S: the token's place in its sequence; null: none
  float *reference = nullptr;   ///< B * S: what preference_loss takes; null: none

  /// Size of an entry in words of 4 bytes.
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

  /// Selects this validation set, or the test data, for the evaluations that follow.
  virtual void evaluate(int64_t /*set*/, bool /*isTest*/) {}

  /// Writes microbatch `microbatch` of `microbatches` of the `visit`-th step, or evaluation, of the
  /// whole job. Allocates nothing after its first call unless it fails.
  virtual Status fill(FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
                      int64_t dataIndex, const FeedEntry &entry) = 0;
};

} // namespace shardc::run
