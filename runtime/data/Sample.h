// A sample of a run, and the interface of sources of samples. A sample is identified only by its
// position in the run, so training data does not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::data {

/// Output arrays of a sample. S is the sequence length.
struct Sample {
  std::span<int32_t> tokens; ///< S
  std::span<int32_t> labels; ///< S; the token that follows each token
  std::span<float> lossMask; ///< S; 1 where the loss counts, otherwise 0
  /// S, or empty if not requested.
  std::span<int32_t> positionIds;
  /// S + 1, or empty if not requested. The first numDocuments + 1 entries are the document
  /// boundaries for attention, as cumulative sequence lengths from 0 to S; the others are S.
  std::span<int32_t> documentStarts;
  int32_t numDocuments = 0;
  /// S, or empty if not requested. For pairs: the log-probability of each document by the reference
  /// model, at the document's first position, and 0 elsewhere. Without a reference: 1 at each
  /// position of a document.
  std::span<float> reference;
};

/// How document ends are treated. The defaults are those of Megatron.
struct DocumentOptions {
  /// Whether position ids restart at 0 after an end token.
  bool resetPositionIds = false;
  /// Whether attention stops at end tokens; documentStarts then has more entries.
  bool resetAttentionMask = false;
  /// Whether position ids restart at 0, and attention stops, where a document of the dataset
  /// begins. Replaces the two options above: documents then need no end tokens.
  bool byDocument = false;
  /// Whether predictions from an end token are excluded from the loss.
  bool eodMaskLoss = false;
  /// The token that ends documents; -1 if there is none.
  int32_t endToken = -1;
  /// A token that fills incomplete samples. It is excluded from the loss and becomes 0; -1 if there
  /// is none.
  int32_t padToken = -1;
};

/// A source of samples, by position. Implementations are immutable: one source serves all ranks of
/// a process.
class DataSource {
public:
  static constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

  virtual ~DataSource() = default;

  /// The name for messages: a path, or the kind of data.
  virtual const std::string &name() const = 0;
  /// Number of samples; kUnbounded if there is no end.
  virtual int64_t numSamples() const = 0;
  virtual int64_t sequenceLength() const = 0;
  /// The relative cost of each sample; empty if all cost the same. Valid as long as the source
  /// exists.
  virtual std::span<const int64_t> costs() const { return {}; }

  /// Writes sample `index`, from 0 to numSamples() - 1. Thread-safe; allocates nothing unless it
  /// fails.
  virtual Status sample(int64_t index, Sample &out) const = 0;
};

/// Computes labels, loss mask, positions and document starts of `out` from its tokens, according to
/// the options. `following` is the token after the last one. Only the first `numLabels` labels are
/// real; the others are padding.
void fillTargets(Sample &out, int32_t following, int64_t numLabels, const DocumentOptions &options);

} // namespace shardc::data
