// The order in which the sequences of a store become samples, as in Megatron-Core's GPTDataset.
// Sequences are repeated for as many epochs as needed and shuffled, then concatenated and cut into
// samples, each of which shares one token with the next. Finally the samples are shuffled. If less
// than 80 % of the last epoch is needed, it is shuffled separately, so that no sequence occurs much
// more often than another. The shuffles are those of numpy, so a seed gives the same order as in
// Megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

struct GptIndexSpec {
  /// The range of sequences of the store: [firstSequence, endSequence).
  int64_t firstSequence = 0;
  int64_t endSequence = 0;
  int64_t sequenceLength = 0;
  /// Minimum number of samples; unset: one epoch.
  std::optional<int64_t> numSamples;
  uint32_t seed = 1234;
  /// If false, the last sample is kept even if tokens are missing at its end.
  bool dropLastPartial = true;
  /// Memory limit of the index in bytes.
  int64_t bytesMax = int64_t{32} << 30;
};

class GptIndex {
public:
  /// A position in the concatenated sequences.
  struct TokenPosition {
    uint32_t document; ///< index in the document order
    int32_t offset;    ///< index of the token in that document
  };

  /// `lengths`: the number of tokens of each sequence of the store `name`. InvalidInput if the
  /// sequences have too few tokens, Exhausted if the index exceeds bytesMax.
  static Result<GptIndex> build(std::span<const int32_t> lengths, const GptIndexSpec &spec,
                                const std::string &name);

  int64_t numSamples() const { return static_cast<int64_t>(shuffle_.size()); }
  int64_t numEpochs() const { return numEpochs_; }
  bool separateFinalEpoch() const { return separateFinalEpoch_; }

  /// Returns the cut at position `index` of the shuffled samples.
  int64_t shuffled(int64_t index) const { return shuffle_[static_cast<size_t>(index)]; }
  /// Returns the beginning of sample `cut`; for numSamples(), the end of the last sample.
  TokenPosition position(int64_t cut) const { return positions_[static_cast<size_t>(cut)]; }
  /// Returns the sequence of the store at a position of the document order.
  int32_t sequence(uint32_t document) const { return documents_[document]; }

  std::span<const int32_t> documents() const { return documents_; }
  std::span<const TokenPosition> positions() const { return positions_; }
  std::span<const uint32_t> shuffle() const { return shuffle_; }

private:
  Status build(std::span<const int32_t> lengths, const GptIndexSpec &spec, int64_t tokensPerEpoch);
  void cutSamples(std::span<const int32_t> lengths, int64_t sequenceLength, int64_t numSamples);

  std::vector<int32_t> documents_;
  std::vector<TokenPosition> positions_;
  std::vector<uint32_t> shuffle_;
  int64_t numEpochs_ = 1;
  bool separateFinalEpoch_ = false;
};

} // namespace shardc::data
