// Where microbatches come from, as the run loop sees it: something that writes the entry of a step,
// a microbatch and a data-parallel coordinate. runtime/data stands behind it in runs, a few lines
// in tests.
#pragma once

#include <cstdint>

#include "runtime/base/Status.h"

namespace shardc::exec {

/// Which of the plan's rings is fed: the cell @feed or @eval_feed.
enum class FeedKind : uint8_t { Train, Eval };

/// One entry of a ring, field by field, for B sequences of S tokens.
struct FeedEntry {
  int64_t batch = 0, sequence = 0; ///< B and S
  int32_t *tokens = nullptr;       ///< B * S
  int32_t *labels = nullptr;       ///< B * S
  float *mask = nullptr;           ///< B * S
  int32_t *positions = nullptr;    ///< B * S
  int32_t *docs = nullptr;         ///< B * S: position at which the token's document begins
  uint8_t *samples = nullptr;      ///< B int64 that are not aligned: the sample's index in the run

  /// Words of 4 bytes that an entry takes.
  static constexpr int64_t words(int64_t batch, int64_t sequence) {
    return 5 * batch * sequence + 2 * batch;
  }
  /// The entry that lies at an address.
  static FeedEntry at(int32_t *words, int64_t batch, int64_t sequence);
};

class BatchSource {
public:
  virtual ~BatchSource() = default;

  /// Writes microbatch `microbatch` of `microbatches` of the `visit`-th step, or evaluation, of the
  /// whole job. Allocates nothing after its first call unless it fails.
  virtual Status fill(FeedKind kind, int64_t visit, int64_t microbatch, int64_t microbatches,
                      int64_t dp, const FeedEntry &entry) = 0;
};

} // namespace shardc::exec
