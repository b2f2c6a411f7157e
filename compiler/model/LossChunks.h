// Constraints on the chunks of rows in which a loss is computed.
#pragma once

#include <cstdint>

namespace shardc::model {

/// Chunks of a microbatch where ranks have columns of the logits, at most: each has ops of its own,
/// so that their number must not grow with the sequence.
inline constexpr int64_t kLossChunksMax = 128;

/// The rows of a chunk must be a multiple of this if the recipe sets them: every chunk of x, labels
/// and losses then begins at a multiple of 16 bytes.
inline constexpr int64_t kLossChunkUnit = 8;

} // namespace shardc::model
