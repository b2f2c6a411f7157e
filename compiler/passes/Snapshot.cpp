// Appends background segments that copy the state that a rank saves (master weights and moments)
// into host memory, from which a checkpoint is written while steps continue. State that all ranks
// hold is divided among them. State that exceeds the recipe's limit for a snapshot is copied in
// pieces: each is a separate segment, and all use the same bytes. Both halves of master weights are
// cut alike.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;

constexpr int64_t kAlign = 16; ///< bytes; cells are cut at multiples of it
/// Maximum number of pieces; the rest of a plan's segments is for ops of a step.
constexpr int64_t kPiecesMax = plan::limits::kSegmentsMax / 2;

int64_t alignUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Part of a cell that one snapshot copies, and the same elements of the cell with the other half.
struct Part {
  uint32_t cell;
  uint32_t other; ///< kNone where the cell has whole numbers
  plan::Moving begin;
  int64_t count; ///< elements
};

class SnapshotBuilder {
public:
  SnapshotBuilder(plan::Plan &plan, plan::Role &role)
      : plan_(plan), role_(role), stream_(plan::streamOf(plan, plan::StreamKind::Copy)),
        loc_(jobLoc(plan, plan.job.derived.locCheckpoint)) {}

  /// Makes pieces of at most `bytesMax`, or of the smallest size that gives kPiecesMax pieces.
  void run(int64_t bytesMax) {
    before_ = plan::findSegment(role_, plan::SegmentKind::Update);
    using enum plan::CellKind;
    auto find = [&](plan::CellKind kind) {
      return plan::findCells(role_, kind, plan_.blocks.size());
    };
    std::vector<uint32_t> masters = find(Master), weights = find(Weight);
    std::vector<uint32_t> first = find(FirstMoment), second = find(SecondMoment);
    std::vector<const plan::Role *> saver = firstRoles(plan_);
    for (size_t b = 0; b < plan_.blocks.size(); ++b) {
      const plan::Block &block = plan_.blocks[b];
      if (saver[b] != &role_)
        continue; // another role has it, or saves it
      uint32_t master = masters[b] != kNone ? masters[b] : weights[b];
      add(block, master, master == kNone ? kNone : plan::upperHalfOf(role_, master));
      add(block, first[b]);
      add(block, second[b]);
    }
    int64_t atOnce = kAlign * cellsMax_; // what the end of a piece may lack is less
    int64_t least = alignUp((aligned_ + kPiecesMax - 1) / kPiecesMax) + atOnce - kAlign;
    bytesMax_ = std::max({bytesMax / kAlign * kAlign, least, atOnce});
    for (const Part &held : held_)
      cut(held);
    if (!parts_.empty())
      flush();
  }

  size_t pieces() const { return pieces_; }
  int64_t bytes() const { return total_; }       ///< of the state
  int64_t bytesMax() const { return bytesMax_; } ///< of a piece

private:
  int64_t sizeOf(const Part &part) const { return dtypeBytes(role_.cells[part.cell].type.dtype); }
  static int64_t cellsOf(const Part &part) { return part.other == kNone ? 1 : 2; }
  /// With padding between cells.
  int64_t bytesOf(const Part &part) const {
    return cellsOf(part) * alignUp(part.count * sizeOf(part));
  }

  /// Records the part of a cell that a rank saves.
  void add(const plan::Block &block, uint32_t cell, uint32_t other = kNone) {
    if (cell == kNone)
      return;
    const Type &type = role_.cells[cell].type;
    plan::StateShare share;
    if (type.numel() == block.numel)
      share = plan::stateShareOf(plan_, static_cast<int32_t>(&block - plan_.blocks.data()));
    int64_t numel = share.isShared() ? share.length : type.numel();
    plan::Moving begin;
    if (share.isShared())
      begin = {0, share.step, block.stateGroup};
    const Part &part = held_.emplace_back(cell, other, begin, numel);
    cellsMax_ = std::max(cellsMax_, cellsOf(part));
    total_ += cellsOf(part) * numel * sizeOf(part);
    aligned_ += bytesOf(part);
  }

  /// Fills the current piece with as much of the cell as fits, then further pieces.
  void cut(const Part &held) {
    int64_t size = sizeOf(held), at = 0;
    while (at < held.count) {
      int64_t room = (bytesMax_ - filled_) / cellsOf(held) / kAlign * kAlign; // for each cell
      if (room <= 0) {
        flush();
        continue;
      }
      int64_t count = std::min(held.count - at, room / size);
      parts_.emplace_back(held.cell, held.other,
                          plan::Moving{at, held.begin.coef, held.begin.group}, count);
      at += count;
      filled_ += bytesOf(parts_.back());
    }
  }

  void flush() {
    plan::Segment segment;
    segment.name = pieces_ == 0 ? "snapshot" : fmt::format("snapshot.{}", pieces_);
    segment.kind = plan::SegmentKind::Snapshot;
    segment.before = before_;
    for (const Part &part : parts_) {
      if (part.other != kNone)
        copy(segment, part, part.other);
      copy(segment, part, part.cell);
    }
    role_.segments.push_back(std::move(segment));
    parts_.clear();
    filled_ = 0;
    ++pieces_;
  }

  void copy(plan::Segment &segment, const Part &part, uint32_t from) {
    // Copies: cells are added below.
    std::string name = role_.cells[from].name;
    Type type = role_.cells[from].type;
    plan::ValueId source = plan::addLiveIn(segment, name, role_, from);
    if (part.count != type.numel()) {
      Op view = plan::makeOp(OpKind::View, {source}, -1, loc_);
      view.set(plan::AttrKey::offset, part.begin.offset);
      view.set(plan::AttrKey::coef, part.begin.coef);
      view.group = part.begin.group;
      type = Type::of(type.dtype, {part.count});
      source = plan::addValue(segment, name + ".part", type, role_.cells[from].purpose);
      view.results = {source};
      plan::append(segment, std::move(view));
    }
    std::string target = pieces_ == 0 ? "snap." + name : fmt::format("snap.{}.{}", pieces_, name);
    uint32_t cell = addCell(role_, std::move(target), plan::CellKind::Buffer, type,
                            plan::Arena::Host, plan::Purpose::Data);
    Op snapshot = plan::makeOp(OpKind::Snapshot, {source}, -1, loc_);
    snapshot.stream = stream_;
    plan::ValueId result = plan::addValue(segment, name + ".saved", type, plan::Purpose::Data);
    snapshot.results = {result};
    plan::append(segment, std::move(snapshot));
    segment.outs.push_back({result, cell});
  }

  const plan::Plan &plan_;
  plan::Role &role_;
  plan::StreamId stream_;
  uint32_t loc_, before_ = kNone;
  std::vector<Part> held_, parts_;
  int64_t bytesMax_ = 0, filled_ = 0;
  int64_t total_ = 0, aligned_ = 0; ///< bytes of the state, and with padding between cells
  int64_t cellsMax_ = 1;            ///< that are copied together
  size_t pieces_ = 0;
};

} // namespace

void runSnapshot(plan::Plan &plan, Notes &notes) {
  bool isWanted = plan.job.checkpoint.asyncSave || plan.job.checkpoint.inMemoryInterval > 0;
  if (!isWanted || plan.job.checkpoint.save.empty())
    return;
  int64_t bytesMax = plan.job.checkpoint.snapshotLimitBytes;
  size_t pieces = 0;
  int64_t bytes = 0, pieceBytes = 0; // of the role with the most pieces
  for (plan::Role &role : plan.roles) {
    SnapshotBuilder builder(plan, role);
    builder.run(bytesMax);
    if (builder.pieces() > pieces)
      pieces = builder.pieces(), bytes = builder.bytes(), pieceBytes = builder.bytesMax();
  }
  if (pieces <= 1)
    return;
  std::string lets = fmt::format("is {}", plan::formatBytes(bytesMax));
  if (pieceBytes > bytesMax)
    lets = fmt::format("is {}, which was raised to {} because a plan has at most {} pieces",
                       plan::formatBytes(bytesMax), plan::formatBytes(pieceBytes), kPiecesMax);
  notes.push_back({fmt::format("the state of a rank has {}, but 'checkpoint.snapshot_limit' {}: "
                               "the state is saved in {} pieces, and steps wait for each piece",
                               plan::formatBytes(bytes), lets, pieces),
                   "snapshot-in-pieces", jobLoc(plan, plan.job.derived.locCheckpoint)});
}

} // namespace shardc::passes
