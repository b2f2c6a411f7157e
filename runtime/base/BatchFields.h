// The fields of a batch, in the order of the results of batch.load and of a ring entry that the
// host fills. The last field exists only in two cases: if ranks have slices of sequences, it has
// their positions (Places); if the loss compares pairs, it has a reference.
#pragma once

#include <cstdint>

namespace shardc::batch {

/// For B sequences of S tokens; the types are those of op batch.load.
enum Field : uint8_t {
  Tokens,             ///< i32[B, S]
  Labels,             ///< i32[B, S]: the token to predict at each position
  Mask,               ///< f32[B, S]: 0 where a label does not count
  Positions,          ///< i32[B, S]
  Docs,               ///< i32[B, S]: the first position of each token's document
  Samples,            ///< i64[B]: the index of the sample in the run
  Places,             ///< i32[B, S]: the place in the whole sequence
  Reference = Places, ///< f32[B, S]: the operand `reference` of preference_loss
  Fields
};

} // namespace shardc::batch
