// The fields of a batch, in the order of the results of batch.load and of a ring entry that the
// host fills. The last field exists only in two cases: if ranks have slices of sequences, it has
// their positions (Places); if the loss compares pairs, it has a reference.
#pragma once

#include <cstdint>

namespace shardc::batch {

enum Field : uint8_t {
  Tokens,
  Labels,
  Mask,
  Positions,
  Docs,
  Samples,
  Places,
  Reference = Places,
  Fields
};

} // namespace shardc::batch
