// Alias classes: values that share bytes through views, packs, ties, in-place ops and cells. Each
// class gets one buffer.
#pragma once

#include <vector>

#include "compiler/passes/Clocks.h"
#include "runtime/plan/Coordinates.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// An alias class, which is placed as one buffer. Classes of cells come first and have the index of
/// their cell.
struct BufferClass {
  plan::Arena arena = plan::Arena::Work;
  int64_t bytes = 0;     ///< size, including all slots of a ring
  int32_t slots = 1;     ///< more than 1 for rings
  int64_t stride = 0;    ///< bytes between slots
  int64_t offset = -1;   ///< offset in the arena in bytes; -1 until placed
  int32_t inside = -1;   ///< the class whose buffer contains this one; -1: none
  plan::Moving insideAt; ///< offset in that buffer in bytes
};

/// Position of a value in its class.
struct Slot {
  int32_t cls = -1;
  plan::Moving at;   ///< offset in bytes from the start of the class, or of a ring slot
  int64_t shift = 0; ///< for a ring: offset between the current microbatch and the slot's
};

/// The alias classes of one role: of its cells and of each segment's values.
struct BufferClasses {
  std::vector<BufferClass> classes;
  std::vector<std::vector<Slot>> slots; ///< [segment][value]
};

/// The sum of two rank-dependent offsets. If they depend on two groups and one is a multiple of the
/// other's size, a group with the axes of both is added to the plan.
plan::Moving combined(plan::Plan &plan, const plan::Moving &a, const plan::Moving &b);

/// Finds the classes of a role. May add groups to the plan: see combined().
BufferClasses findBufferClasses(plan::Plan &plan, const plan::Role &role);

/// The live range of a class in one segment, in order of issue.
struct Lifetime {
  int32_t first = -1, last = -1; ///< op indices; -1: not accessed
  Clock until = kClockZero;      ///< the last op on each stream that accesses it
};

/// The live ranges of all classes in one segment.
std::vector<Lifetime> findLifetimes(const BufferClasses &classes, const plan::Segment &segment,
                                    size_t segmentIndex);

} // namespace shardc::passes
