// One sample of a run and where samples come from. A sample is named by its position in the run
// alone, so what is trained on does not depend on how many ranks share the work.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Arrays that a sample is written to; S is the sequence length.
struct Sample {
  std::span<int32_t> tokens; ///< S
  std::span<int32_t> labels; ///< S; the token that follows each token
  std::span<float> lossMask; ///< S; 0 where the loss does not count, else 1
  /// S, or empty if not wanted.
  std::span<int32_t> positionIds;
  /// S + 1, or empty if not wanted. The first numDocuments + 1 entries are where attention begins
  /// anew, from 0 to S, as cumulative sequence lengths; the others are S.
  std::span<int32_t> documentStarts;
  int32_t numDocuments = 0;
};

/// What happens at document ends; the defaults are Megatron's.
struct DocumentOptions {
  /// Positions begin with 0 again after an end token.
  bool resetPositionIds = false;
  /// Tokens do not attend across an end token; gives documentStarts more than one entry.
  bool resetAttentionMask = false;
  /// The loss of what is predicted from an end token does not count.
  bool eodMaskLoss = false;
  /// The token that ends documents; -1 if there is none.
  int32_t endToken = -1;
  /// A token that fills up samples: its loss does not count and it is replaced by 0; -1 if none.
  int32_t padToken = -1;
};

/// Samples by position. Implementations are immutable: one source serves all ranks of a process.
class DataSource {
public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  virtual ~DataSource() = default;

  /// For messages: the path, or what the data are.
  virtual const std::string &name() const = 0;
  /// Samples that there are, kUnbounded if they do not end.
  virtual int64_t numSamples() const = 0;
  virtual int64_t sequenceLength() const = 0;

  /// Writes sample `index`, from 0 to numSamples() - 1. Safe from several threads at once;
  /// allocates nothing unless it fails.
  virtual Status sample(int64_t index, Sample &out) const = 0;
};

/// Fills labels, loss mask, positions and document starts of `out`, whose tokens are set, by the
/// options. `following` is the token after the last; of the sample only the first `numLabels`
/// labels are real, the rest pads it.
void fillTargets(Sample &out, int32_t following, int64_t numLabels, const DocumentOptions &options);

} // namespace shardc::data
