// The state of a rank is the concatenation of its copies, in the order of the background segment.
// The layout finds the bytes of a box in the images of other ranks, even if the job had another
// number of ranks.
#include "runtime/save/ImageLayout.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/base/Reports.h"
#include "runtime/exec/Mesh.h"

namespace shardc::save {

Result<ImageLayout> ImageLayout::create(const plan::Plan &plan, const StateLayout &layout,
                                        const std::vector<SnapshotPiece> &pieces) {
  if (pieces.size() != 1)
    return makeStatus(report::PlanCannotRun,
                      "'checkpoint.in_memory_interval' is set, but the plan copies the state in {} "
                      "pieces; it needs to do so in one",
                      pieces.size());
  ImageLayout images(plan, layout);
  images.roles_.resize(plan.roles.size());
  for (const RoleSnapshot &role : pieces.front().roles) {
    RoleCopies &copies = images.roles_[role.role];
    copies.copies = role.copies;
    for (const SnapshotCopy &copy : role.copies)
      copies.bytes += copy.bytes;
  }
  return images;
}

Status ImageLayout::findSaved() {
  for (int64_t rank = 0; rank < plan_->worldSize(); ++rank) {
    ASSIGN_OR_RETURN(std::vector<StatePiece> pieces, layout_->piecesToSave(rank));
    for (StatePiece &piece : pieces) {
      Key key{piece.part, layout_->nameOf(piece)};
      saved_[key].push_back({rank, std::move(piece)});
    }
  }
  return Status::ok();
}

/// The offset of a cell's bytes in the state of a rank's image. Copies of one cell are adjacent.
Result<int64_t> ImageLayout::placeOf(int64_t owner, uint32_t role, uint32_t cell, int64_t begin,
                                     int64_t bytes) const {
  exec::GroupIndices indices(*plan_, owner);
  int64_t at = 0;
  for (const SnapshotCopy &copy : roles_[role].copies) {
    int64_t first = copy.byteBegin.at(indices.of(copy.byteBegin.group));
    if (copy.cell == cell && begin >= first && begin + bytes <= first + copy.bytes)
      return at + begin - first;
    at += copy.bytes;
  }
  return makeStatus(report::PlanCannotRun,
                    "bytes {} to {} of cell @{} are not in one copy of the background segment",
                    begin, begin + bytes, plan_->roles[role].cells[cell].name);
}

/// Rows of the common box are contiguous in the saved piece only if both boxes have whole rows, so
/// anything else is refused.
Result<std::vector<ImageLayout::Source>> ImageLayout::sourcesOf(const StatePiece &piece,
                                                                const StateLayout &other) const {
  std::vector<Source> sources;
  auto saved = saved_.find({piece.part, other.nameOf(piece)});
  DType type = other.cellOf(piece).type.dtype;
  int64_t found = 0, size = dtypeBytes(type);
  for (size_t i = 0; saved != saved_.end() && i < saved->second.size(); ++i) {
    const auto &[owner, from] = saved->second[i];
    std::optional<checkpoint::Box> common = checkpoint::intersect(piece.box, from.box);
    if (!common)
      continue;
    bool hasWholeRows = std::equal(common->shape.begin() + 1, common->shape.end(),
                                   from.box.shape.begin() + 1, from.box.shape.end()) &&
                        std::equal(common->shape.begin() + 1, common->shape.end(),
                                   piece.box.shape.begin() + 1, piece.box.shape.end());
    bool areHalves = piece.upper != plan::kNone;
    if (!hasWholeRows || layout_->cellOf(from).type.dtype != type ||
        areHalves != (from.upper != plan::kNone))
      return makeStatus(report::PlanCannotRun, "'{}': rank {} saves {} in another form than {}",
                        other.nameOf(piece), owner, checkpoint::boxText(from.box),
                        checkpoint::boxText(piece.box));
    int64_t rowBytes = from.bytes / from.box.shape[0];
    int64_t begin = (common->offset[0] - from.box.offset[0]) * rowBytes;
    int64_t bytes = common->shape[0] * rowBytes;
    ASSIGN_OR_RETURN(int64_t at,
                     placeOf(owner, from.role, from.cell, from.byteBegin + begin, bytes));
    int64_t upperAt = 0;
    if (areHalves) {
      ASSIGN_OR_RETURN(upperAt,
                       placeOf(owner, from.role, from.upper, from.byteBegin + begin, bytes));
    }
    found += bytes / size;
    sources.push_back({owner, at, upperAt, std::move(*common)});
  }
  if (found * size != piece.bytes)
    return makeStatus(report::PlanCannotRun, "images of ranks have {} of the {} bytes of '{}'",
                      found * size, piece.bytes, other.nameOf(piece));
  return sources;
}

namespace {

/// Calls `use` for each field of a progress, except lists and optional fields.
template <typename P, typename Use> void forFields(P &progress, const Use &use) {
  use(progress.step);
  use(progress.applied);
  use(progress.scheduledSamples);
  use(progress.lr);
  use(progress.decoupledLr);
  use(progress.weightDecay);
  use(progress.consumedTrainSamples);
  use(progress.consumedValidSamples);
  use(progress.skippedTrainSamples);
  use(progress.floatingPointOperations);
}

template <typename P, typename Use> void forLists(P &progress, const Use &use) {
  use(progress.amaxHistory);
  use(progress.expertBias);
  use(progress.countOffsets);
}

class PackedBytes {
public:
  explicit PackedBytes(std::string_view left) : left_(left) {}
  /// Copies bytes to `to`. If too few bytes are left, the target stays unchanged.
  void take(void *to, size_t bytes) {
    isOk_ = isOk_ && bytes <= left_.size();
    if (!isOk_ || bytes == 0)
      return;
    std::memcpy(to, left_.data(), bytes);
    left_.remove_prefix(bytes);
  }
  void fail() { isOk_ = false; }
  size_t left() const { return left_.size(); }
  bool isComplete() const { return isOk_ && left_.empty(); }

private:
  std::string_view left_;
  bool isOk_ = true;
};

constexpr int64_t kFieldBytesMax = 256; ///< fields other than lists

} // namespace

std::string packProgress(const Progress &progress) {
  std::string bytes;
  auto add = [&](const auto &value) {
    static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(value)>>);
    bytes.append(reinterpret_cast<const char *>(&value), sizeof value);
  };
  forFields(progress, add);
  add(uint8_t{progress.lossScaler.has_value()});
  add(progress.lossScaler.value_or(LossScaler{}));
  forLists(progress, [&](const auto &list) {
    add(static_cast<uint64_t>(list.size()));
    bytes.append(reinterpret_cast<const char *>(list.data()), list.size() * sizeof list[0]);
  });
  return bytes;
}

Result<Progress> unpackProgress(std::string_view text) {
  Progress progress;
  PackedBytes bytes(text);
  forFields(progress, [&](auto &value) { bytes.take(&value, sizeof value); });
  uint8_t hasScaler = 0;
  LossScaler scaler;
  bytes.take(&hasScaler, sizeof hasScaler);
  bytes.take(&scaler, sizeof scaler);
  if (hasScaler != 0)
    progress.lossScaler = scaler;
  forLists(progress, [&](auto &list) {
    uint64_t count = 0;
    bytes.take(&count, sizeof count);
    if (count > bytes.left() / sizeof list[0])
      return bytes.fail();
    list.resize(count);
    bytes.take(list.data(), count * sizeof list[0]);
  });
  if (!bytes.isComplete())
    return makeStatus(StatusCode::InvalidInput, "{} bytes in memory are no position of a job",
                      text.size());
  return progress;
}

int64_t progressBytesMax(const plan::Plan &plan) {
  int64_t bytes = kFieldBytesMax + static_cast<int64_t>(plan.params.size() * sizeof(int64_t));
  int64_t amax = 0, bias = 0;
  for (uint32_t role = 0; role < plan.roles.size(); ++role) {
    if (const plan::Cell *cell = amaxHistoryOf(plan, role))
      amax = std::max(amax, cell->type.bytes());
    if (const plan::Cell *cell = expertBiasOf(plan, role))
      bias = std::max(bias, cell->type.bytes());
  }
  return bytes + amax + bias;
}

} // namespace shardc::save
