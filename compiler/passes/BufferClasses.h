// Classes of values that share bytes through views, packs, ties, in-place ops and cells. Each class
// gets one buffer.
#pragma once

#include <vector>

#include "compiler/passes/Clocks.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Bytes that are placed as one unit. The classes of cells come first, with the index of the cell.
struct BufferClass {
  plan::Arena arena = plan::Arena::Work;
  int64_t bytes = 0;     ///< of all slots of a ring
  int32_t slots = 1;     ///< more for rings
  int64_t stride = 0;    ///< bytes from a slot to the next
  int64_t offset = -1;   ///< in the arena; -1 until placed
  int32_t inside = -1;   ///< a class whose buffer contains this one
  plan::Moving insideAt; ///< bytes from that buffer's start
};

/// A value's position in its class.
struct Slot {
  int32_t cls = -1;
  plan::Moving at;   ///< bytes from the class's start, or from that of a slot of a ring
  int64_t shift = 0; ///< of a ring: from the microbatch under way to the one that the slot is for
};

/// The classes of one role: of its cells and of each segment's values.
struct BufferClasses {
  std::vector<BufferClass> classes;
  std::vector<std::vector<Slot>> slots; ///< [segment][value]
};

/// The sum of what both places move by. If they move with two groups, one by the size of the other,
/// the plan has a group with the axes of both afterwards.
plan::Moving combined(plan::Plan &plan, const plan::Moving &a, const plan::Moving &b);

BufferClasses findBufferClasses(plan::Plan &plan, const plan::Role &role);

/// The time during which a class is accessed inside one segment, in the order of issue.
struct Lifetime {
  int32_t first = -1, last = -1; ///< op indices; -1: not accessed
  Clock until = kClockZero;      ///< the last op on each stream that accesses it
};

/// Lifetimes of all classes in one segment.
std::vector<Lifetime> findLifetimes(const BufferClasses &classes, const plan::Segment &segment,
                                    size_t segmentIndex);

} // namespace shardc::passes
