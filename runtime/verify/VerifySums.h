// The mark of a value as a part of a sum: the mesh axes along which ranks may hold different bytes,
// the axes over which the sum is still to be made, and the microbatches of the step whose
// contributions it has.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyOpSets.h"

namespace shardc::plan::verifier {

/// Axes of the mesh with more than one rank, a bit each.
using Axes = uint16_t;

/// The microbatches of the step whose contributions a value has. If two covers are joined that
/// differ, the one of the later kind is the result.
struct Cover {
  enum Kind : uint8_t {
    None,    ///< of none: constants, state
    Some,    ///< of those from `begin` on, before `end`, each once
    Missing, ///< not of all
    Mixed,   ///< parts that are summed over ranks, and others that are not
    Twice,   ///< of some more than once
    Old      ///< of another step
  };
  Kind kind = None;
  int64_t begin = 0, end = 0;

  static Cover of(int64_t microbatch) { return {Some, microbatch, microbatch + 1}; }
  /// From `Missing` on an optimizer may not take the sum.
  bool isBad() const { return kind >= Missing; }
  bool has(int64_t microbatch) const {
    return kind == Some && begin <= microbatch && microbatch < end;
  }
  bool operator==(const Cover &) const = default;
};

/// In place of a mark's multiple: contributions are multiplied by different numbers.
inline constexpr float kManyMultiples = 0;

/// Where a step state is between two steps.
enum class Phase : uint8_t { None, Ended, Begun, Unclear };

struct Mark {
  Axes varies = 0; ///< ranks that differ in these may hold other bytes of the same elements
  Axes split = 0;  ///< ranks that differ in these hold other elements of split parameters
  Axes due = 0;    ///< axes over which the value is still a part of a sum
  Cover cover = {};
  Phase phase = Phase::None;
  Phase evaluation = Phase::None; ///< of a step state, within what some steps do
  int32_t block = -1; ///< of which this is all, or a rank's part; -1: of none, or not known
  /// By which its contributions are multiplied; kManyMultiples where these are different.
  float multiple = 1;
  /// What the contributions of the cover's last microbatch are, and those that all microbatches
  /// before it have in common.
  OpSet latest = kNoOps, before = kAllOps;
  bool operator==(const Mark &) const = default;
};

/// Axes along which ranks have other elements of a parameter by its splits, and those along which
/// they have the same by its copies.
Axes splitAxesOf(const Plan &plan, const Param &param);
Axes copyAxesOf(const Plan &plan, const Param &param);

/// The mark of a value that is `a` or `b`, depending on the way that the program took.
Mark joined(OpSets &sets, const Mark &a, const Mark &b);
/// The sum of both, which an op makes of its microbatch; one of them may have no contribution at
/// all. Several ops may contribute to the same microbatch, each once.
Mark added(OpSets &sets, const Mark &a, const Mark &b, int64_t microbatch);
/// The mark of a buffer that consists of `a` and `b`.
Mark packed(OpSets &sets, const Mark &a, const Mark &b);
/// True if `after` is `before` but for a sum that goes up to a microbatch that is `step` later.
bool isMovedOn(const Mark &before, const Mark &after, int64_t step = 1);
/// Moves a sum on as often as it was from the one to the other.
void moveOn(const Cover &before, Cover &after, int64_t microbatches);
/// The result of a collective over the axes. An average divides by the ranks along them.
Mark gathered(Mark mark, Axes over);
Mark reduced(const Plan &plan, Mark mark, Axes over, bool isAverage, bool isScattered);
/// What is made of all members' values, and is no sum of them; `isApart`: another on each member.
Mark exchanged(Mark mark, Axes over, bool isApart);
/// The mark of another member's value.
Mark shifted(Mark mark, Axes over);

/// What holds elements that differ along the axes of splits: none of it is a part of a sum over
/// them.
Mark withSplits(Mark mark, Axes splits);

/// What is wrong with a sum that is to be complete, as the end of a sentence about the value; empty
/// if nothing is.
std::string_view whyIncomplete(Cover::Kind cover);

/// The group's axes, none of group -1; or all of the mesh's.
Axes axesOf(const Plan &plan, int16_t group);
Axes axesOf(const Plan &plan);
/// Axes along which ranks hold other parts of the block's state.
Axes stateAxesOf(const Plan &plan, const Block &block);
/// How many ranks differ in these axes.
int64_t ranksAlong(const Plan &plan, Axes axes);
/// The first group in which ranks have the same indices; -1 if each rank is alone in it.
int16_t firstAlike(const Plan &plan, int16_t group);
/// The group's first axes that have so many coordinates together; none if no axes do. Ranks with
/// slices lie along them: ranks of a group count heads first, then slices.
Axes outerAxesOf(const Plan &plan, int16_t group, int64_t members);
/// `'tp'`, `'tp' and 'cp'`, or `no axis`.
std::string namesOf(const Plan &plan, Axes axes);

/// How marks change where values become blocks with split parameters, and parts of them. Ranks
/// along a parameter's splits hold other elements of it, and no parts of a sum.
class BlockSplits {
public:
  explicit BlockSplits(Inspection &inspection);

  /// Axes of the splits of the block's parameters.
  Axes of(int32_t block) const { return axes_.empty() ? Axes{0} : axes_[size_t(block)]; }
  /// Axes of the splits of all parameters.
  Axes ofAll() const { return ofAll_; }
  /// What an op takes as a block, if it was not known as one.
  Mark asBlock(Mark mark, int32_t block);
  /// The k-th parameter of a block, in a pack of it.
  Mark packed(const Mark &mark, int32_t block, size_t k);
  /// A view has the splits of the parameters in it, if it is of a whole block.
  Mark viewed(Mark mark, const Op &view, const std::vector<Value> &values);

private:
  Inspection &report_;
  const Plan &plan_;
  std::vector<Axes> axes_; ///< by block; empty if no parameter is split
  Axes ofAll_ = 0;
};

/// The axes of a role's transfers along which it has one coordinate. Along them ranks compute
/// different things, so that what one contributes to a block that others have as well is a part of
/// the sum.
struct Stages {
  Axes axes = 0;
  std::vector<Axes> sharedBy; ///< of each block: along which of them other roles have its state
  std::vector<bool> isHeldByOthers; ///< each block: another role has its state
  bool othersAddLosses = false;     ///< the role adds none, and another one does
};
/// Of a part of the role's ranks.
Stages stagesOf(Inspection &inspection, uint32_t role, const Role &part);

/// Checks that each element of a gradient counts once in the norm, where steps end as they should.
void checkNorms(Inspection &inspection);

/// Gradients are multiples of the loss scale exactly where steps end with a division by it.
void checkScales(Inspection &inspection);

/// What a role's optimizers take of state and gradients, in the order of two steps: where roles
/// have equal state, equal numbers are equal values.
struct Update {
  int32_t block;
  uint32_t segment, op;
  uint64_t gradient, state; ///< what is added to the state, and the state
};

/// What optimizers take on a part of a role's ranks.
struct PartUpdates {
  uint32_t role;
  Role part;
  std::vector<Update> updates;
};

/// The ranks of a role, cut along each of the axes where ranks of any role begin or end. Each part
/// says where it is on these axes, and has nothing else of the role.
std::vector<Role> partsAlong(Inspection &inspection, const Role &role, Axes axes);
/// The same along all axes along which a role is not all of the mesh.
std::vector<Role> partsOfRole(Inspection &inspection, uint32_t role);

/// Whether optimizers of several roles update one block.
bool haveUpdatesInCommon(const Plan &plan);

/// Roles whose ranks have state in common change it alike.
void compareRoles(Inspection &inspection, const std::vector<PartUpdates> &updates);

} // namespace shardc::plan::verifier
