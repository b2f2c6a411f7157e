// Marks: what the verifier knows of a value as a gradient or state. A mark holds the mesh axes
// along which ranks may hold different bytes, the axes over which the value still must be summed,
// and the microbatches whose contributions it contains. checkSums() requires that an optimizer
// reads a gradient with all contributions, each exactly once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyOpSets.h"

namespace shardc::plan::verifier {

/// Axes of the mesh with more than one rank, a bit each.
using Axes = uint16_t;

/// The microbatches of the step whose contributions a value contains. Kinds are ordered: the join
/// of two different covers has the later kind.
struct Cover {
  enum Kind : uint8_t {
    None,    ///< no contribution: constants, state
    Some,    ///< contributions of the microbatches in [begin, end), each once
    Missing, ///< contributions of some, but not all, of the microbatches up to `end`
    Mixed,   ///< some parts are summed over ranks, others are not
    Twice,   ///< a microbatch contributes more than once
    Old      ///< from another step
  };
  Kind kind = None;
  int64_t begin = 0, end = 0;

  /// The cover of a value that one microbatch contributes.
  static Cover of(int64_t microbatch) { return {Some, microbatch, microbatch + 1}; }
  /// Whether an optimizer must not read such a sum.
  bool isBad() const { return kind >= Missing; }
  /// Whether it certainly contains the microbatch's contribution.
  bool has(int64_t microbatch) const {
    return kind == Some && begin <= microbatch && microbatch < end;
  }
  bool operator==(const Cover &) const = default;
};

/// A mark's multiple if its contributions are multiplied by different numbers.
inline constexpr float kManyMultiples = 0;

/// Where a step state is in the cycle of `step.begin` and `step.finish`.
enum class Phase : uint8_t { None, Ended, Begun, Unclear };

/// The mark of one value or cell at one point of the program.
struct Mark {
  Axes varies = 0; ///< axes along which ranks may hold other bytes of the same elements
  Axes split = 0;  ///< axes along which ranks hold other elements of split parameters
  Axes due = 0;    ///< axes over which the value is still a partial sum
  Cover cover = {};
  Phase phase = Phase::None;
  Phase evaluation = Phase::None; ///< for a step state inside an `every`
  int32_t block = -1; ///< the block of which this is the whole, or a shard; -1: none, or unknown
  /// The number by which its contributions are multiplied, such as a loss scale; kManyMultiples if
  /// they differ.
  float multiple = 1;
  /// The contributions of the cover's last microbatch, and the contributions that all microbatches
  /// before it have in common.
  OpSet latest = kNoOps, before = kAllOps;
  bool operator==(const Mark &) const = default;
};

/// Axes along which a parameter is split, and axes along which ranks have copies of the same
/// elements.
Axes splitAxesOf(const Plan &plan, const Param &param);
Axes copyAxesOf(const Plan &plan, const Param &param);

/// The join: the mark of a value that is `a` or `b`, depending on the path through the program.
Mark joined(OpSets &sets, const Mark &a, const Mark &b);
/// The mark of a sum that an op computes in `microbatch`. Several ops may contribute to one
/// microbatch, each once; `a` or `b` may have no contribution.
Mark added(OpSets &sets, const Mark &a, const Mark &b, int64_t microbatch);
/// The mark of a buffer that contains both.
Mark packed(OpSets &sets, const Mark &a, const Mark &b);
/// True if `after` equals `before`, except that its cover extends to a microbatch that is `step`
/// later.
bool isMovedOn(const Mark &before, const Mark &after, int64_t step = 1);
/// Extends a cover by further microbatches, as an iteration extended `before` to `after`.
void moveOn(const Cover &before, Cover &after, int64_t microbatches);
/// Marks of results of collectives over the axes. An average divides by the number of ranks along
/// them.
Mark gathered(Mark mark, Axes over);
Mark reduced(const Plan &plan, Mark mark, Axes over, bool isAverage, bool isScattered);
/// The result of an exchange that is not a sum; `isApart`: each member gets a different result.
Mark exchanged(Mark mark, Axes over, bool isApart);
/// The mark after a shift, which delivers another member's value.
Mark shifted(Mark mark, Axes over);

/// The mark of a value whose elements differ along the axes `splits`: it is not a partial sum over
/// these axes.
Mark withSplits(Mark mark, Axes splits);

/// Why a sum is incomplete, as the end of a sentence about the value; empty if it is complete.
std::string_view whyIncomplete(Cover::Kind cover);

/// The axes of the group (none for group -1), or all axes of the mesh.
Axes axesOf(const Plan &plan, int16_t group);
Axes axesOf(const Plan &plan);
/// Axes along which ranks hold different shards of the block's state.
Axes stateAxesOf(const Plan &plan, const Block &block);
/// The number of ranks along these axes, the product of their sizes.
int64_t ranksAlong(const Plan &plan, Axes axes);
/// `'tp'`, `'tp' and 'cp'`, or `no axis`.
std::string namesOf(const Plan &plan, Axes axes);

/// How marks change where values become blocks with split parameters, or parts of such blocks.
/// Ranks along a parameter's split hold different elements of it, not partial sums.
class BlockSplits {
public:
  /// Reads the splits of all parameters. Refers to the inspection and its plan.
  explicit BlockSplits(Inspection &inspection);

  /// Axes of the splits of the block's parameters.
  Axes of(int32_t block) const { return axes_.empty() ? Axes{0} : axes_[size_t(block)]; }
  /// Axes of the splits of all parameters.
  Axes ofAll() const { return ofAll_; }
  /// The mark of an operand that an op uses as a block.
  Mark asBlock(Mark mark, int32_t block);
  /// The mark of the k-th parameter in a pack of the block.
  Mark packed(const Mark &mark, int32_t block, size_t k);
  /// The mark of a view. A view of a whole block has the splits of the parameters in it.
  Mark viewed(Mark mark, const Op &view, const std::vector<Value> &values);

private:
  Inspection &report_;
  const Plan &plan_;
  std::vector<Axes> axes_; ///< by block; empty if no parameter is split
  Axes ofAll_ = 0;
};

/// How a role relates to the other pipeline stages. `axes` are those of its transfers along which
/// it has one coordinate. Ranks that differ there compute different values, so a role's
/// contribution to a block that other roles also have is a partial sum over these axes.
struct Stages {
  Axes axes = 0;
  std::vector<Axes> sharedBy;       ///< by block: axes along which other roles have its state
  std::vector<bool> isHeldByOthers; ///< by block: another role has its state too
  bool othersAddLosses = false;     ///< another role contributes losses, and this one does not
};
/// The stages of a part of the role's ranks.
Stages stagesOf(Inspection &inspection, uint32_t role, const Role &part);

/// Checks that the gradient norm counts each element of a gradient exactly once.
void checkNorms(Inspection &inspection);

/// Checks that gradients are multiplied by the loss scale exactly if the step divides by it at its
/// end.
void checkScales(Inspection &inspection);

/// What one optimizer op reads. Roles that share state must compute equal updates, so the updates
/// of two steps are compared between roles, in order.
struct Update {
  int32_t block;
  uint32_t segment, op;
  uint64_t gradient, state; ///< value numbers of the gradient and of the state
};

/// The updates of a part of a role's ranks.
struct PartUpdates {
  uint32_t role;
  Role part;
  std::vector<Update> updates;
};

/// Divides the ranks of a role along each of the axes, at the coordinates where ranks of any role
/// begin or end. The results have the role's coordinates, but not its segments.
std::vector<Role> partsAlong(Inspection &inspection, const Role &role, Axes axes);
/// Like partsAlong(), along all axes on which the role does not span the whole mesh.
std::vector<Role> partsOfRole(Inspection &inspection, uint32_t role);

/// Whether optimizers of several roles update the same block.
bool haveUpdatesInCommon(const Plan &plan);

/// Reports roles that share state of a block and update it differently.
void compareRoles(Inspection &inspection, const std::vector<PartUpdates> &updates);

} // namespace shardc::plan::verifier
