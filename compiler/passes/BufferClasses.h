// Values that share bytes, as classes: what views, packs, ties, in-place ops and cells tie
// together. Each class gets one buffer.
#pragma once

#include <vector>

#include "compiler/passes/Clocks.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Bytes that are placed as one. Cells' classes come first, with the cell's index.
struct BufferClass {
  plan::Arena arena = plan::Arena::Work;
  int64_t bytes = 0;
  int64_t offset = -1;      ///< in the arena; -1 until placed
  int32_t inside = -1;      ///< a class whose buffer holds this one
  int64_t insideCoefDp = 0; ///< bytes from that buffer's start per data-parallel coordinate
};

/// Where a value lies in its class.
struct Slot {
  int32_t cls = -1;
  int64_t offset = 0;
  int64_t coefDp = 0;
};

/// The classes of one role: of its cells and of each segment's values.
struct BufferClasses {
  std::vector<BufferClass> classes;
  std::vector<std::vector<Slot>> slots; ///< [segment][value]
};

BufferClasses findBufferClasses(const plan::Plan &plan, const plan::Role &role);

/// When a class is touched inside one segment, in the order of issue.
struct Lifetime {
  int32_t first = -1, last = -1; ///< op indices; -1: not touched
  Clock until = kClockZero;      ///< the last op on each stream that touches it
};

/// Lifetimes of all classes in one segment.
std::vector<Lifetime> findLifetimes(const BufferClasses &classes, const plan::Segment &segment,
                                    size_t segmentIndex);

} // namespace shardc::passes
