// Appends background segments that copy the state that a rank saves (master weights and moments)
// into host memory. A checkpoint is written from there while steps continue. State that several
// ranks hold is divided among them. State that exceeds the recipe's limit for a snapshot is copied
// in pieces: each piece is a separate segment, and all pieces use the same bytes. Both halves of
// master weights are split alike.
//
// The next update waits for these copies, and the link to the host is slow. So state may be staged:
// a first segment copies it within the device, and the update waits only for that copy. A second
// segment copies the staged state to the host during the next steps. By default, the staged bytes
// are those for which the next update would otherwise wait, as far as the device has free memory.
#include <algorithm>

#include <fmt/format.h>
#include <llvm/ADT/SmallVector.h>

#include "compiler/passes/Allocator.h"
#include "compiler/passes/CellTable.h"
#include "compiler/passes/Passes.h"
#include "compiler/predict/Overheads.h"
#include "compiler/predict/SaveTime.h"
#include "compiler/predict/Transfers.h"
#include "runtime/plan/Builder.h"
#include "runtime/plan/HostCells.h"
#include "runtime/plan/Limits.h"
#include "runtime/plan/Summary.h"

namespace shardc::passes {
namespace {

constexpr int64_t kAlign = 16; ///< bytes; cells are cut at multiples of it
/// Maximum number of pieces. The other segments of a plan are left for the ops of steps.
constexpr int64_t kPiecesMax = plan::limits::kSegmentsMax / 2;

/// Copies to the host may use the fraction kReliedOn of the predicted time before an update, and
/// staged state leaves 1 / kLeftFree of a device's memory free: predictions are not exact.
constexpr double kReliedOn = 0.5;
constexpr int64_t kLeftFree = 32; ///< divisor

int64_t alignUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Part of a cell that one snapshot copies. For master weights in two halves, `other` is the cell
/// with the other half.
struct Part {
  uint32_t cell;
  uint32_t other; ///< kNone if the cell has whole numbers
  plan::Moving begin;
  int64_t count; ///< elements
};

/// Bytes of a role's state, with padding between cells: how many should be staged, and the free
/// memory for them.
struct Staging {
  int64_t wanted = 0, available = 0;
};

class SnapshotBuilder {
public:
  SnapshotBuilder(plan::Plan &plan, plan::Role &role)
      : plan_(plan), role_(role), stream_(plan::streamOf(plan, plan::StreamKind::Copy)),
        loc_(jobLoc(plan, plan.job.derived.locCheckpoint)) {}

  /// Finds the state that a rank saves.
  void collect() {
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
      if (saver[b] != &role_ || plan::isOfBase(plan_, block))
        continue; // not in this role, saved by another role, or not saved
      uint32_t master = masters[b] != kNone ? masters[b] : weights[b];
      add(block, master, master == kNone ? kNone : plan::upperHalfOf(role_, master));
      add(block, first[b]);
      add(block, second[b]);
    }
  }

  /// Splits the state into pieces of at most `bytesMax`; of larger ones if there would be more than
  /// kPiecesMax pieces.
  void cutInto(int64_t bytesMax) {
    int64_t atOnce = kAlign * cellsMax_; // bound on the unused bytes at the end of a piece
    int64_t least = alignUp((aligned_ + kPiecesMax - 1) / kPiecesMax) + atOnce - kAlign;
    bytesMax_ = std::max({bytesMax / kAlign * kAlign, least, atOnce});
    for (const Part &held : held_)
      cut(held);
    if (!parts_.empty())
      flush();
  }

  /// Stages state in whole cells, from the last cell on. Copies all other state in one piece.
  void stage(const Staging &staging) {
    std::vector<bool> isStaged(held_.size());
    for (size_t i = held_.size(); i-- > 0 && staged_ < staging.wanted;) {
      int64_t bytes = numberOf(held_[i]) * aligned(held_[i].count * sizeOf(held_[i]));
      isStaged[i] = bytes <= staging.available - staged_;
      staged_ += isStaged[i] ? bytes : 0;
    }
    if (staged_ == 0)
      return cutInto(aligned_);
    plan::Segment stage, snapshot;
    stage.name = "stage", snapshot.name = "snapshot";
    stage.kind = plan::SegmentKind::Stage, snapshot.kind = plan::SegmentKind::Snapshot;
    stage.before = before_, snapshot.before = static_cast<uint32_t>(role_.segments.size());
    for (const Part &held : held_) // in the order of a checkpoint
      for (uint32_t cell : cellsOf(held))
        liveIn(stage, cell);
    std::vector<std::pair<uint32_t, uint32_t>> staged; // a cell, and the cell in which it is staged
    for (size_t i = 0; i < held_.size(); ++i)
      if (isStaged[i])
        for (uint32_t cell : cellsOf(held_[i]))
          staged.emplace_back(cell, stageIn(stage, cell, held_[i]));
    for (size_t i = 0; i < held_.size(); ++i) // longer copies after the shorter ones
      if (!isStaged[i])
        copy(stage, held_[i]);
    for (auto [cell, in] : staged)
      copy(snapshot, in, {}, role_.cells[in].type.numel(), role_.cells[cell].name);
    role_.segments.push_back(std::move(stage));
    role_.segments.push_back(std::move(snapshot));
    pieces_ = 1;
  }

  int64_t staged() const { return staged_; }
  size_t pieces() const { return pieces_; }
  int64_t bytes() const { return total_; } ///< of the state
  /// Bytes of the state, with padding between cells.
  int64_t alignedBytes() const { return aligned_; }
  int64_t bytesMax() const { return bytesMax_; } ///< of a piece

private:
  int64_t sizeOf(const Part &part) const { return dtypeBytes(role_.cells[part.cell].type.dtype); }
  /// The cells of a part, in the order of copying.
  static llvm::SmallVector<uint32_t, 2> cellsOf(const Part &part) {
    if (part.other == kNone)
      return {part.cell};
    return {part.other, part.cell};
  }
  static int64_t numberOf(const Part &part) { return static_cast<int64_t>(cellsOf(part).size()); }
  /// The bytes of a part, including padding between cells.
  int64_t bytesOf(const Part &part) const {
    return numberOf(part) * alignUp(part.count * sizeOf(part));
  }

  /// Records the part of a cell that this rank saves.
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
    const Part &part = held_.emplace_back(Part{cell, other, begin, numel});
    cellsMax_ = std::max(cellsMax_, numberOf(part));
    total_ += numberOf(part) * numel * sizeOf(part);
    aligned_ += bytesOf(part);
  }

  /// Fills the current piece with as much of the cell as fits, then starts further pieces.
  void cut(const Part &held) {
    int64_t size = sizeOf(held), at = 0;
    while (at < held.count) {
      int64_t available = (bytesMax_ - filled_) / numberOf(held) / kAlign * kAlign; // for each cell
      if (available <= 0) {
        flush();
        continue;
      }
      int64_t count = std::min(held.count - at, available / size);
      parts_.push_back({held.cell, held.other, {at, held.begin.coef, held.begin.group}, count});
      at += count;
      filled_ += bytesOf(parts_.back());
    }
  }

  void flush() {
    plan::Segment segment;
    segment.name = pieces_ == 0 ? "snapshot" : fmt::format("snapshot.{}", pieces_);
    segment.kind = plan::SegmentKind::Snapshot;
    segment.before = before_;
    for (const Part &part : parts_)
      copy(segment, part);
    role_.segments.push_back(std::move(segment));
    parts_.clear();
    filled_ = 0;
    ++pieces_;
  }

  void copy(plan::Segment &segment, const Part &part) {
    for (uint32_t cell : cellsOf(part))
      copy(segment, cell, part.begin, part.count, std::string(role_.cells[cell].name));
  }

  /// Copies a range of the cell, which may be the cell in which state is staged.
  void copy(plan::Segment &segment, uint32_t from, const plan::Moving &begin, int64_t count,
            const std::string &name) {
    std::string target = pieces_ == 0 ? "snap." + name : fmt::format("snap.{}.{}", pieces_, name);
    append(segment, from, begin, count, OpKind::Snapshot, std::move(target), name + ".saved");
  }

  uint32_t stageIn(plan::Segment &segment, uint32_t cell, const Part &part) {
    std::string name = role_.cells[cell].name;
    return append(segment, cell, part.begin, part.count, OpKind::Stage, "staged." + name,
                  name + ".staged");
  }

  plan::ValueId liveIn(plan::Segment &segment, uint32_t cell) const {
    plan::ValueId in = plan::liveInOf(segment, cell);
    return in != kNone ? in : plan::addLiveIn(segment, role_.cells[cell].name, role_, cell);
  }

  /// Appends a copy of elements of `from` to a new cell. Returns the new cell.
  uint32_t append(plan::Segment &segment, uint32_t from, const plan::Moving &begin, int64_t count,
                  OpKind kind, std::string target, std::string result) {
    // Copied, because addCell() below may move the cells.
    std::string name = role_.cells[from].name;
    Type type = role_.cells[from].type;
    plan::ValueId source = liveIn(segment, from);
    if (count != type.numel()) {
      Op view = plan::makeOp(OpKind::View, {source}, -1, loc_);
      view.set(plan::AttrKey::offset, begin.offset);
      view.set(plan::AttrKey::coef, begin.coef);
      view.group = begin.group;
      type = Type::of(type.dtype, {count});
      source = plan::addValue(segment, name + ".part", type, role_.cells[from].purpose);
      view.results = {source};
      plan::append(segment, std::move(view));
    }
    bool isStaged = kind == OpKind::Stage;
    plan::Purpose purpose = isStaged ? plan::Purpose::SaveStaging : plan::Purpose::SaveCopies;
    uint32_t cell = addCell(role_, std::move(target), plan::CellKind::Buffer, type,
                            isStaged ? plan::Arena::Work : plan::Arena::Host, purpose);
    Op op = plan::makeOp(kind, {source}, -1, loc_);
    op.stream = stream_;
    op.results = {plan::addValue(segment, std::move(result), type, purpose)};
    segment.outs.push_back({op.results[0], cell});
    plan::append(segment, std::move(op));
    return cell;
  }

  const plan::Plan &plan_;
  plan::Role &role_;
  plan::StreamId stream_;
  uint32_t loc_, before_ = kNone;
  std::vector<Part> held_, parts_;
  int64_t bytesMax_ = 0, filled_ = 0, staged_ = 0;
  int64_t total_ = 0, aligned_ = 0; ///< bytes of the state: without and with padding between cells
  int64_t cellsMax_ = 1;            ///< maximum number of cells that are copied together
  size_t pieces_ = 0;
};

/// Decides how much of the state is staged if the recipe does not say it, and reports the decision.
class StagingChoice {
public:
  /// `plan`: the plan without snapshots, which is placed to find the free memory.
  explicit StagingChoice(const plan::Plan &plan) : plan_(plan), device_(deviceFor(plan)) {
    if (!device_)
      return;
    Notes notes;
    placed_ = plan;
    runPlaceBuffers(placed_, notes);
  }

  Staging of(const plan::Role &role, int64_t bytes) {
    if (int64_t given = plan_.job.checkpoint.snapshotStagingBytes; given >= 0)
      return {given, given};
    if (!device_)
      return {};
    const plan::Role &placed = placed_.roles[static_cast<size_t>(&role - plan_.roles.data())];
    double seconds = predict::secondsBeforeUpdate(*device_, placed_, placed);
    auto relied = static_cast<int64_t>(kReliedOn * seconds * device_->sustained.hostGBs * 1e9);
    int64_t left = plan_.deviceBytes - predict::deviceBytesOf(placed_, placed);
    Staging staging{std::max<int64_t>(bytes - relied, 0),
                    std::max<int64_t>(left - plan_.deviceBytes / kLeftFree, 0)};
    if (bytes > bytes_)
      bytes_ = bytes, seconds_ = seconds, staging_ = staging;
    return staging;
  }

  /// Reports the decision for the role that saves the most bytes. `staged`: the largest number of
  /// any role.
  void noteChoice(int64_t staged, Notes &notes) const {
    if (!device_ || bytes_ == 0)
      return;
    std::string text = fmt::format(
        "'checkpoint.snapshot_staging' is not set: {} of the {} of state that a rank copies to the "
        "host are staged on the device; the link takes {:.3g} ms, and the next update waits for "
        "what is not copied {:.3g} ms after a step",
        plan::formatBytes(staged), plan::formatBytes(bytes_),
        1e3 * predict::hostCopySeconds(*device_, bytes_), 1e3 * seconds_);
    if (staged < staging_.wanted)
      text +=
          fmt::format("; the plan leaves {} for it, and {} are needed",
                      plan::formatBytes(staging_.available), plan::formatBytes(staging_.wanted));
    notes.push_back(
        {std::move(text), "snapshot-staging", jobLoc(plan_, plan_.job.derived.locCheckpoint)});
  }

private:
  /// Only in-memory saves are frequent enough to stage state; saves to disk may wait.
  static std::optional<predict::Device> deviceFor(const plan::Plan &plan) {
    const auto &options = plan.job.checkpoint;
    if (options.snapshotStagingBytes >= 0 || options.inMemoryInterval == 0 || plan.deviceBytes == 0)
      return std::nullopt;
    std::optional<predict::Device> device = predict::plannedDevice(plan);
    return device && !device->isHost() ? device : std::nullopt;
  }

  const plan::Plan &plan_;
  std::optional<predict::Device> device_;
  plan::Plan placed_;
  int64_t bytes_ = 0;
  double seconds_ = 0;
  Staging staging_;
};

void reportPieces(const plan::Plan &plan, const SnapshotBuilder &most, Notes &notes) {
  int64_t bytesMax = plan.job.checkpoint.snapshotLimitBytes;
  std::string lets = fmt::format("is {}", plan::formatBytes(bytesMax));
  if (most.bytesMax() > bytesMax)
    lets = fmt::format("is {}, which was raised to {} because a plan has at most {} pieces",
                       plan::formatBytes(bytesMax), plan::formatBytes(most.bytesMax()), kPiecesMax);
  notes.push_back({fmt::format("the state of a rank has {}, but 'checkpoint.snapshot_limit' {}: "
                               "the state is saved in {} pieces, and steps wait for each piece",
                               plan::formatBytes(most.bytes()), lets, most.pieces()),
                   "snapshot-in-pieces", jobLoc(plan, plan.job.derived.locCheckpoint)});
}

} // namespace

/// A snapshot that fits the limit of host memory is taken as a whole, possibly through device
/// memory (staging), which shortens the time during which steps wait. Otherwise it is cut into
/// pieces that share the memory.
void runSnapshot(plan::Plan &plan, Notes &notes) {
  bool isWanted = plan.job.checkpoint.asyncSave || plan.job.checkpoint.inMemoryInterval > 0;
  if (!isWanted || plan.job.checkpoint.save.empty())
    return;
  std::vector<SnapshotBuilder> builders;
  for (plan::Role &role : plan.roles)
    builders.emplace_back(plan, role).collect();
  int64_t bytesMax = plan.job.checkpoint.snapshotLimitBytes;
  bool areWhole = std::ranges::all_of(
      builders, [&](const SnapshotBuilder &each) { return each.alignedBytes() <= bytesMax; });
  if (areWhole) {
    StagingChoice choice(plan);
    std::vector<Staging> stagings;
    for (size_t r = 0; r < plan.roles.size(); ++r)
      stagings.push_back(choice.of(plan.roles[r], builders[r].bytes()));
    int64_t staged = 0;
    for (size_t r = 0; r < plan.roles.size(); ++r) {
      builders[r].stage(stagings[r]);
      staged = std::max(staged, builders[r].staged());
    }
    choice.noteChoice(staged, notes);
    return;
  }
  for (SnapshotBuilder &builder : builders)
    builder.cutInto(bytesMax);
  reportPieces(plan, *std::ranges::max_element(builders, {}, &SnapshotBuilder::pieces), notes);
}

} // namespace shardc::passes
