// The order in which the sequences of a store become samples, as Megatron-Core's GPTDataset has it:
// sequences are repeated for as many epochs as needed and shuffled, laid end to end and cut into
// samples that share one token with the next, and the samples are shuffled. If less than 80 % of
// the last epoch are needed, it is shuffled by itself, so that no sequence comes much more often
// than another. Shuffles are numpy's, so the order for a seed is Megatron's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"

namespace shardc::data {

struct GptIndexSpec {
  /// The sequences of the store that take part: [firstSequence, endSequence).
  int64_t firstSequence = 0;
  int64_t endSequence = 0;
  int64_t sequenceLength = 0;
  /// Samples that are needed at least; without a number it is what one epoch holds.
  std::optional<int64_t> numSamples;
  uint32_t seed = 1234;
  /// False keeps the last sample although tokens are missing at its end.
  bool dropLastPartial = true;
  /// Memory that the index may take.
  int64_t bytesMax = int64_t{32} << 30;
};

class GptIndex {
public:
  /// A place in the row of sequences.
  struct Place {
    uint32_t document; ///< position in the document order
    int32_t offset;    ///< token in that document
  };

  /// `lengths` are the tokens of each sequence of the store called `name`. InvalidInput if the
  /// sequences hold too few tokens, Exhausted beyond bytesMax.
  static Result<GptIndex> build(std::span<const int32_t> lengths, const GptIndexSpec &spec,
                                const std::string &name);

  int64_t numSamples() const { return static_cast<int64_t>(shuffle_.size()); }
  int64_t numEpochs() const { return numEpochs_; }
  bool separateFinalEpoch() const { return separateFinalEpoch_; }

  /// Which of the samples cut from the row comes at position `index`.
  int64_t shuffled(int64_t index) const { return shuffle_[static_cast<size_t>(index)]; }
  /// Where sample `cut` begins; for numSamples() where the last one ends.
  Place place(int64_t cut) const { return places_[static_cast<size_t>(cut)]; }
  /// The sequence of the store at a position of the document order.
  int32_t sequence(uint32_t document) const { return documents_[document]; }

  std::span<const int32_t> documents() const { return documents_; }
  std::span<const Place> places() const { return places_; }
  std::span<const uint32_t> shuffle() const { return shuffle_; }

private:
  Status build(std::span<const int32_t> lengths, const GptIndexSpec &spec, int64_t tokensPerEpoch);
  void cutSamples(std::span<const int32_t> lengths, int64_t sequenceLength, int64_t numSamples);

  std::vector<int32_t> documents_;
  std::vector<Place> places_;
  std::vector<uint32_t> shuffle_;
  int64_t numEpochs_ = 1;
  bool separateFinalEpoch_ = false;
};

} // namespace shardc::data
