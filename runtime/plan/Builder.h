// Helpers that build and rewrite the segments of a plan: values, ops, definitions and users.
// Lowering, passes and tests use them. All functions change the plan in place and expect indices
// that are in range.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Adds a value without a defining op and returns its id. The caller keeps names unique in the
/// segment.
ValueId addValue(Segment &segment, std::string name, const Type &type,
                 Purpose purpose = Purpose::Activations);

/// A kind of cell and, for kinds that belong to one, the index of its block or parameter.
struct CellOf {
  CellOf(CellKind kind) : kind(kind) {}
  CellOf(CellKind kind, size_t of) : kind(kind), of(static_cast<int32_t>(of)) {}
  CellKind kind;
  int32_t of = -1;
};

/// Adds a cell and returns its index. The caller keeps names unique.
uint32_t addCell(Role &role, std::string name, CellOf kind, const Type &type, Arena arena,
                 Purpose purpose);

/// Changes the element type of a cell and of every segment value that is read from it or written to
/// it.
void changeType(Role &role, uint32_t cell, DType dtype);

/// Adds a live-in value that holds the cell's content.
ValueId addLiveIn(Segment &segment, std::string name, const Role &role, uint32_t cell);

/// Returns an op without results. `unit` and `loc` are copied into it.
Op makeOp(OpKind kind, std::initializer_list<ValueId> operands, int32_t unit = -1,
          uint32_t loc = kNone);

/// Returns the index of the group with exactly these axes in this order. If the plan lacks it, the
/// group is added under `name`, or under the names of its axes.
int16_t groupOf(Plan &plan, std::vector<uint16_t> axes, std::string name = "");
/// Splits a group of ranks in two. innerGroupOf() returns the group of its fastest-varying axes
/// that together have `ranks` ranks, and adds it if needed; -1 for one rank. The axes of the group
/// must divide there.
int16_t innerGroupOf(Plan &plan, int16_t group, int64_t ranks);
/// The group of the remaining axes: ranks of one inner group count as one. -1 for one rank.
int16_t outerGroupOf(Plan &plan, int16_t group, int64_t ranks);
/// The group of the kind along which something can be sharded; -1 if it has one rank.
int16_t groupToCutOf(const Plan &plan, GroupKind kind);

/// The plan's stream of the kind (any but Other), added to the plan if it has none.
StreamId streamOf(Plan &plan, StreamKind kind);
/// The plan's channel with this group, stream and transport, added if the plan has none. A new
/// channel gets `name`; if that is taken, the group's name is appended.
ChannelId channelOf(Plan &plan, int16_t group, StreamKind stream, Transport transport,
                    std::string_view name);

/// The channel of two members of the group, for sends and receives between them; added if there is
/// none.
ChannelId pairChannelOf(Plan &plan, int16_t group, std::array<int32_t, 2> pair, StreamKind stream,
                        std::string name);

/// Assigns the op to the channel and to its group.
void setChannel(const Plan &plan, Op &op, ChannelId channel);

/// Appends the op to the segment and makes it the definition of its results. An op without a phase
/// gets the phase of the segment's kind. Returns the op's index.
uint32_t append(Segment &segment, Op op);

/// Recomputes the definition of every value after ops were moved, added or removed.
void renumber(Segment &segment);

/// Use lists: for each value, the ops that have it as an operand or a tie, in order of issue.
/// Boundary `outs` of the segment do not count as uses. The lists are a snapshot: they are stale
/// once ops change.
class Users {
public:
  explicit Users(const Segment &segment);
  /// Indices of the ops that use the value.
  const uint32_t *begin(ValueId value) const { return ops_.data() + starts_[value]; }
  const uint32_t *end(ValueId value) const { return ops_.data() + starts_[value + 1]; }
  size_t count(ValueId value) const { return starts_[value + 1] - starts_[value]; }

private:
  std::vector<uint32_t> starts_, ops_;
};

/// Replaces the segment's ops by `ops`, whose wait lists must be empty, and recomputes definitions.
void replaceOps(Segment &segment, std::vector<Op> ops);

/// Index of the role's first cell of the kind (and of block or parameter `of`, if the kind has
/// one); kNone if there is none.
uint32_t findCell(const Role &role, CellKind kind, int32_t of = -1);
/// Like findCell(), for blocks or parameters 0 to count - 1, in one pass over the cells.
std::vector<uint32_t> findCells(const Role &role, CellKind kind, size_t count);
/// Index of the role's first segment of the kind, or kNone.
uint32_t findSegment(const Role &role, SegmentKind kind);

/// Whether `unit` is the index of a transformer layer; false for a negative index.
bool isLayer(const Plan &plan, int32_t unit);

/// The segment's live-in value that holds the cell's content, or kNone.
ValueId liveInOf(const Segment &segment, uint32_t cell);

/// Removes the ops whose entry in `dead` is not 0, and recomputes definitions.
void eraseOps(Segment &segment, const std::vector<uint8_t> &dead);

/// Dead code elimination: removes pure ops without used results until none is left.
void removeDeadOps(Segment &segment);
/// Like removeDeadOps() above, but `mayGo`, not purity, decides which ops without used results are
/// removed.
void removeDeadOps(Segment &segment, bool (*mayGo)(const Op &));

/// Replaces each value's number by its entry in `index`, wherever the segment names a value.
void renameValues(Segment &segment, const std::vector<ValueId> &index);

/// Removes the values that no op and no boundary names, and renumbers the others.
void dropUnusedValues(Segment &segment);

} // namespace shardc::plan
