// What values hold as parts of sums: over which axes of the mesh ranks may hold other bytes, over
// which of them a sum is still due, and of which microbatches of the step it has the contributions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/plan/VerifyImpl.h"

namespace shardc::plan::verifier {

/// Axes of the mesh with more than one rank, a bit each.
using Axes = uint8_t;

/// Of which of the step's microbatches, up to the one under way, a value has the contributions.
/// From `Missing` on it is no sum that an optimizer may take; the later one stands for both.
enum class Cover : uint8_t {
  None,    ///< of none: constants, state
  New,     ///< of the one under way
  Earlier, ///< of all before it
  All,     ///< of it and all before
  Missing, ///< not of all
  Mixed,   ///< parts that are summed over ranks, and others that are not
  Twice,   ///< of some more than once
  Old      ///< of another step
};

/// Where a step state is between two steps.
enum class Phase : uint8_t { None, Ended, Begun, Unclear };

struct Mark {
  Axes varies = 0; ///< ranks that differ in these may hold other bytes
  Axes due = 0;    ///< of these: what ranks hold are parts of one sum that nobody has made
  Cover cover = Cover::None;
  Phase phase = Phase::None;
  bool operator==(const Mark &) const = default;
};

/// What holds one or the other, by the way that the program took.
Mark joined(const Mark &a, const Mark &b);
/// The sum of both, of which one may be no contribution at all.
Mark added(const Mark &a, const Mark &b);
/// Parts of one buffer.
Mark packed(const Mark &a, const Mark &b);
/// The result of a collective over the axes.
Mark gathered(Mark mark, Axes over);
Mark reduced(Mark mark, Axes over, bool isAverage, bool isScattered);

/// What is wrong with a sum that is to be complete, as the end of a sentence about the value; empty
/// if nothing is.
std::string_view whyIncomplete(Cover cover);

/// The group's axes, or all of the mesh's.
Axes axesOf(const Plan &plan, int16_t group);
Axes axesOf(const Plan &plan);
/// The axis dp.
Axes dpAxis(const Plan &plan);
/// `'dp'`, or `'tp' and 'dp'`.
std::string namesOf(const Plan &plan, Axes axes);

/// What a role's optimizers take of state and gradients, in the order of two steps: where roles
/// have equal state, equal numbers are equal values.
struct Update {
  int32_t block;
  uint32_t segment, op;
  uint64_t gradient, state; ///< what is added to the state, and the state
};

} // namespace shardc::plan::verifier
