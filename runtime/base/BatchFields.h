// What a batch consists of, in order: the results of batch.load, and an entry of the ring that the
// host fills. The last one is there where ranks have slices of
// sequences, whose places it has, or where the loss is one of pairs, which takes a reference.
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
