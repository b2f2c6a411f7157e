// Background segments that copy what a rank saves of the state, master weights and moments, into
// memory of the host, from where a checkpoint is written while steps go on. State that all ranks
// hold is shared out. What is larger than the recipe lets a snapshot be is copied in pieces, each a
// segment of its own over the same bytes.
#include <algorithm>

#include <fmt/format.h>

#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/StateShare.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

using plan::kNone;
using plan::Op;
using plan::OpKind;
using plan::Type;

constexpr int64_t kAlign = 16; ///< bytes; where a cell may be cut

/// Part of a cell that one snapshot copies.
struct Part {
  uint32_t cell;
  int64_t begin, step, count; ///< elements from `begin` + `step` * dp on
};

class SnapshotBuilder {
public:
  SnapshotBuilder(const plan::Plan &plan, plan::Role &role, int64_t bytesMax)
      : plan_(plan), role_(role), bytesMax_(std::max(bytesMax / kAlign * kAlign, kAlign)),
        loc_(jobLoc(plan, "derived.loc.checkpoint")) {}

  /// Returns the bytes of the state.
  int64_t run() {
    before_ = plan::findSegment(role_, "update");
    for (const plan::Block &block : plan_.blocks) {
      uint32_t master = plan::findCell(role_, "master." + block.name);
      add(block, master != kNone ? master : plan::findCell(role_, "w." + block.name));
      add(block, plan::findCell(role_, "m." + block.name));
      add(block, plan::findCell(role_, "v." + block.name));
    }
    if (!parts_.empty())
      flush();
    return total_;
  }

  size_t pieces() const { return pieces_; }

private:
  /// Fills the piece under way with as much of the cell as it takes, then further ones.
  void add(const plan::Block &block, uint32_t cell) {
    if (cell == kNone)
      return;
    const Type type = role_.cells[cell].type; // a copy: pieces add cells
    plan::StateShare share;
    if (type.numel() == block.numel)
      share = plan::stateShareOf(plan_, static_cast<int32_t>(&block - plan_.blocks.data()),
                                 plan_.worldSize());
    int64_t size = dtypeBytes(type.dtype), at = 0;
    int64_t numel = share.isShared() ? share.window : type.numel();
    while (at < numel) {
      int64_t room = (bytesMax_ - filled_) / kAlign * kAlign;
      if (room <= 0) {
        flush();
        continue;
      }
      int64_t count = std::min(numel - at, room / size);
      parts_.push_back({cell, at, share.step, count});
      at += count;
      filled_ += (count * size + kAlign - 1) / kAlign * kAlign;
      total_ += count * size;
    }
  }

  void flush() {
    plan::Segment segment;
    segment.name = pieces_ == 0 ? "snapshot" : fmt::format("snapshot.{}", pieces_);
    segment.before = before_;
    for (const Part &part : parts_)
      copy(segment, part);
    role_.segments.push_back(std::move(segment));
    parts_.clear();
    filled_ = 0;
    ++pieces_;
  }

  void copy(plan::Segment &segment, const Part &part) {
    // Copies: cells are added below.
    std::string name = role_.cells[part.cell].name;
    Type type = role_.cells[part.cell].type;
    plan::ValueId source = plan::addLiveIn(segment, name, role_, part.cell);
    if (part.count != type.numel()) {
      Op view = plan::makeOp(OpKind::View, {source}, -1, loc_);
      view.set(plan::AttrKey::offset, part.begin);
      view.set(plan::AttrKey::coef_dp, part.step);
      type = Type::of(type.dtype, {part.count});
      source = plan::addValue(segment, name + ".part", type, role_.cells[part.cell].purpose);
      view.results = {source};
      plan::append(segment, std::move(view));
    }
    std::string target = pieces_ == 0 ? "snap." + name : fmt::format("snap.{}.{}", pieces_, name);
    uint32_t cell = addCell(role_, std::move(target), type, plan::Arena::Host, plan::Purpose::Data);
    Op snapshot = plan::makeOp(OpKind::Snapshot, {source}, -1, loc_);
    snapshot.stream = plan::Stream::Copy;
    plan::ValueId result = plan::addValue(segment, name + ".saved", type, plan::Purpose::Data);
    snapshot.results = {result};
    plan::append(segment, std::move(snapshot));
    segment.outs.push_back({result, cell});
  }

  const plan::Plan &plan_;
  plan::Role &role_;
  int64_t bytesMax_;
  uint32_t loc_, before_ = kNone;
  std::vector<Part> parts_;
  int64_t filled_ = 0, total_ = 0;
  size_t pieces_ = 0;
};

} // namespace

void runSnapshot(plan::Plan &plan, Notes &notes) {
  if (!plan.jobBool("checkpoint.async_save", false) ||
      plan.jobString("checkpoint.save", "").empty())
    return;
  int64_t bytesMax = plan.jobInt("checkpoint.snapshot_limit", int64_t{1} << 40);
  for (plan::Role &role : plan.roles) {
    SnapshotBuilder builder(plan, role, bytesMax);
    int64_t total = builder.run();
    if (builder.pieces() > 1)
      notes.push_back(
          {fmt::format("the state of a rank has {}, and 'checkpoint.snapshot_limit' "
                       "lets a snapshot have {}: it is saved in {} pieces, while steps "
                       "wait",
                       plan::formatBytes(total), plan::formatBytes(bytesMax), builder.pieces()),
           "snapshot-in-pieces", jobLoc(plan, "derived.loc.checkpoint")});
  }
}

} // namespace shardc::passes
