// Constraints on the chunks of rows in which a loss is computed.
#pragma once

#include <cstdint>

namespace shardc::model {

/// Maximum number of chunks per microbatch if the logits' columns are sharded over ranks. Each
/// chunk has ops of its own, so their number must not grow with the sequence.
inline constexpr int64_t kLossChunksMax = 128;

/// If the recipe sets the rows of a chunk, they must be a multiple of this number, so that the
/// parts of x, labels and losses of each chunk begin at multiples of 16 bytes.
inline constexpr int64_t kLossChunkUnit = 8;

} // namespace shardc::model
