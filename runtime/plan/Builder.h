// Small steps to build and rewrite segments: values, ops, defs, users. For lowering, passes and
// tests.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::plan {

/// Adds a value that nothing defines yet. The caller keeps names unique.
ValueId addValue(Segment &segment, std::string name, const Type &type,
                 Purpose purpose = Purpose::Activations);

/// A kind of cells, and the block or parameter that one of them is of.
struct CellOf {
  CellOf(CellKind kind) : kind(kind) {}
  CellOf(CellKind kind, size_t of) : kind(kind), of(static_cast<int32_t>(of)) {}
  CellKind kind;
  int32_t of = -1;
};

/// Adds a cell and returns its index. The caller keeps names unique.
uint32_t addCell(Role &role, std::string name, CellOf kind, const Type &type, Arena arena,
                 Purpose purpose);

/// Gives a cell, and all values that segments take from it or leave in it, another element type.
void changeType(Role &role, uint32_t cell, DType dtype);

/// Adds a live-in value that holds the cell's content.
ValueId addLiveIn(Segment &segment, std::string name, const Role &role, uint32_t cell);

/// An op without results; `unit` and `loc` as given.
Op makeOp(OpKind kind, std::initializer_list<ValueId> operands, int32_t unit = -1,
          uint32_t loc = kNone);

/// The plan's group with these axes in this order; added to the plan if it has none, under the
/// name, or under those of the axes.
int16_t groupOf(Plan &plan, std::vector<uint16_t> axes, std::string name = "");
/// The group of those axes of a group that are fastest and have so many ranks together, likewise;
/// -1 for one rank. Groups are cut there.
int16_t innerGroupOf(Plan &plan, int16_t group, int64_t ranks);
/// The group of its other axes, among which ranks of such a group are one; -1 for one rank.
int16_t outerGroupOf(Plan &plan, int16_t group, int64_t ranks);
/// The group of the kind, if it has several ranks; -1 otherwise.
int16_t groupToCutOf(const Plan &plan, GroupKind kind);

/// The plan's stream of the kind, which is not Other; added to the plan if it has none.
StreamId streamOf(Plan &plan, StreamKind kind);
/// The plan's channel of the group that runs on the stream of this kind and travels like this,
/// likewise. A channel that is added gets the name, followed by that of the group if another one
/// has it.
ChannelId channelOf(Plan &plan, int16_t group, StreamKind stream, Transport transport,
                    std::string_view name);

/// Likewise of two members of the group.
ChannelId pairChannelOf(Plan &plan, int16_t group, std::array<int32_t, 2> pair, StreamKind stream,
                        std::string name);

/// Lets the op be issued on the channel, over its group.
void setChannel(const Plan &plan, Op &op, ChannelId channel);

/// Appends the op to the segment and sets its results' defs. An op of no phase gets that of the
/// segment's kind. Returns the op's index.
uint32_t append(Segment &segment, Op op);

/// Sets every value's def anew after ops were moved, added or removed.
void renumber(Segment &segment);

/// For each value the ops that name it as operand or tie, in order of issue. `outs` count as no
/// user.
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

/// Replaces the segment's ops by `ops` (whose waits are empty) and sets defs anew.
void replaceOps(Segment &segment, std::vector<Op> ops);

/// Index of the role's first cell of the kind, of the block or parameter if the kind has one, or
/// kNone.
uint32_t findCell(const Role &role, CellKind kind, int32_t of = -1);
/// The same for each of `count` blocks or parameters, in one pass over the cells.
std::vector<uint32_t> findCells(const Role &role, CellKind kind, size_t count);
/// Index of the role's first segment of the kind, or kNone.
uint32_t findSegment(const Role &role, SegmentKind kind);

/// Whether the index is that of a layer's unit; not if it is below 0.
bool isLayer(const Plan &plan, int32_t unit);

/// The segment's live-in value of the cell, or kNone.
ValueId liveInOf(const Segment &segment, uint32_t cell);

/// Removes the ops, by index, that are marked other than 0, and renumbers.
void eraseOps(Segment &segment, const std::vector<uint8_t> &dead);

/// Removes pure ops none of whose results is used, until there are none.
void removeDeadOps(Segment &segment);
/// The same of the ops that may go.
void removeDeadOps(Segment &segment, bool (*mayGo)(const Op &));

/// Removes the values that neither ops nor boundaries name, and renumbers the others.
void dropUnusedValues(Segment &segment);

} // namespace shardc::plan
