// The interface of the run loop to its data: writes the microbatch of a step, a microbatch number
// and a data-parallel coordinate. runtime/data implements it for runs; tests have small
// implementations.
#pragma once

#include <cstdint>

#include "runtime/base/Status.h"

namespace shardc::run {

/// The ring of the plan that is fed: the cell @feed or @eval_feed.
enum class FeedKind : uint8_t { Train, Eval };

/// One entry of a ring, field by field, for B sequences of S tokens.
struct FeedEntry {
  int64_t batch = 0, sequence = 0; ///< B and S
  int32_t *tokens = nullptr;       ///< B * S
  int32_t *labels = nullptr;       ///< B * S
  float *mask = nullptr;           ///< B * S
  int32_t *positions = nullptr;    ///< B * S
  int32_t *docs = nullptr;         ///< B * S: position at which the token's document begins
  uint8_t *samples = nullptr;      ///< B int64, unaligned: the sample's index in the run

  /// Size of an entry in words of 4 bytes.
  static constexpr int64_t words(int64_t batch, int64_t sequence) {
    return 5 * batch * sequence + 2 * batch;
  }
  /// The entry at an address.
  static FeedEntry at(int32_t *words, int64_t batch, int64_t sequence);
};

class BatchSource {
public:
  virtual ~BatchSource() = default;

  /// Writes microbatch `microbatch` of `microbatches` of the `visit`-th step, or evaluation, of the
  /// whole job. Allocates nothing after its first call unless it fails.
  virtual Status fill(FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
                      int64_t dataIndex, const FeedEntry &entry) = 0;
};

} // namespace shardc::run
