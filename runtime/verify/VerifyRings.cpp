// Checks that the bytes of rings are their own, and makes the plan in which each slot is a cell.
#include "runtime/verify/VerifyRings.h"

#include <algorithm>

#include "runtime/plan/Limits.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

void RoleRings::add(const std::vector<uint32_t> &cells) {
  numbers_.resize(rings_.size());
  for (size_t slot = 0; slot < cells.size(); ++slot) {
    uint32_t cell = cells[slot];
    if (cell >= rings_.size()) {
      rings_.resize(cell + 1, -1);
      numbers_.resize(cell + 1);
    }
    rings_[cell] = static_cast<int32_t>(slots_.size());
    numbers_[cell] = static_cast<int64_t>(slot);
  }
  slots_.push_back(cells);
}

bool touchesRings(const RoleRings &rings, const Segment &segment) {
  auto isSlot = [&](const Segment::Boundary &boundary) { return rings.isSlot(boundary.cell); };
  return std::ranges::any_of(segment.ins, isSlot) || std::ranges::any_of(segment.outs, isSlot);
}

namespace {

/// Of each cell whether it is followed which microbatch its content is of.
std::vector<bool> followedCells(const Role &role) {
  std::vector<bool> isFollowed;
  for (const Cell &cell : role.cells)
    isFollowed.push_back(cell.isRing());
  for (const Segment &segment : role.segments)
    for (const std::vector<Segment::Boundary> *boundaries : {&segment.ins, &segment.outs})
      for (const Segment::Boundary &boundary : *boundaries)
        if (boundary.shift != 0)
          isFollowed[boundary.cell] = true;
  return isFollowed;
}

} // namespace

bool hasRings(const Plan &plan) {
  return std::ranges::any_of(plan.roles, [](const Role &role) {
    std::vector<bool> isFollowed = followedCells(role);
    return std::ranges::find(isFollowed, true) != isFollowed.end();
  });
}

namespace {

void flatten(Place &place) {
  place.offset = place.offsetFor(0);
  place.slots = 1, place.stride = place.shift = 0;
}

/// The cell that a boundary names in microbatch 0.
uint32_t slotCell(const std::vector<std::vector<uint32_t>> &slots,
                  const Segment::Boundary &boundary) {
  const std::vector<uint32_t> &cells = slots[boundary.cell];
  Place place;
  place.slots = static_cast<int32_t>(cells.size()), place.shift = boundary.shift;
  return cells[static_cast<size_t>(place.slotOf(0))];
}

RoleRings flatten(Role &role) {
  RoleRings rings(role.cells.size());
  const std::vector<bool> isFollowed = followedCells(role);
  std::vector<std::vector<uint32_t>> slots(role.cells.size()); // of each cell, itself first
  const size_t count = role.cells.size();
  for (uint32_t c = 0; c < count; ++c) {
    slots[c] = {c};
    Cell own = role.cells[c];
    for (int64_t slot = 1; slot < own.slots; ++slot) {
      Cell cell = own;
      cell.name = fmt::format("{} slot {}", own.name, slot);
      cell.slots = 1;
      cell.place.shift = slot;
      flatten(cell.place);
      slots[c].push_back(static_cast<uint32_t>(role.cells.size()));
      role.cells.push_back(std::move(cell));
    }
    role.cells[c].slots = 1;
    flatten(role.cells[c].place);
    if (isFollowed[c])
      rings.add(slots[c]);
  }
  for (Segment &segment : role.segments) {
    for (std::vector<Segment::Boundary> *boundaries : {&segment.ins, &segment.outs})
      for (Segment::Boundary &boundary : *boundaries)
        boundary.cell = slotCell(slots, boundary);
    for (Value &value : segment.values)
      flatten(value.place);
  }
  return rings;
}

/// Checks what rings need so that it is enough to check bytes in microbatch 0.
class RingCheck : RoleCheck {
public:
  RingCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(plan_, role_) {}

  void run() {
    for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c)
      checkCell(c);
    if (report_.size() != 0)
      return;
    findExtents();
    for (uint32_t s = 0; s < role_.segments.size() && !report_.isFull(); ++s) {
      Scope where = scope(s);
      for (const auto *boundaries : {&where.segment.ins, &where.segment.outs})
        for (const Segment::Boundary &boundary : *boundaries)
          checkBoundary(where, boundary);
      for (ValueId id = 0; id < where.segment.values.size(); ++id)
        checkValue(where, id);
    }
  }

private:
  /// Bytes of a ring, on any rank of the role.
  struct Extent {
    Arena arena;
    int64_t begin, end;
    uint32_t cell;
    auto key() const { return std::pair(arena, begin); }
  };

  void checkCell(uint32_t c) {
    const Cell &cell = role_.cells[c];
    if (cell.slots < 1 || cell.slots > limits::kSlotsMax || cell.place.slots < 1) {
      report_.add(finding::SlotsOutOfRange, {roleIndex_, kNone, kNone}, cell.name, cell.slots,
                  limits::kSlotsMax);
      return;
    }
    if (cell.isRing() && (cell.kind != CellKind::Buffer || cell.arena == Arena::Host))
      addCell(Rule::Ring, c,
              "ring '@{}' of kind '{}' is in arena {}; a ring is a buffer, and not in arena host",
              cell.name, cellKindInfo(cell.kind).word, toString(cell.arena));
    if (!cell.place.placed)
      return;
    if (cell.place.slots != cell.slots || cell.place.shift != 0)
      addCell(Rule::Ring, c, "the place of cell '@{}' has {} slots; the cell has {}", cell.name,
              cell.place.slots, cell.slots);
    else if (cell.isRing() &&
             (cell.place.stride < cell.type.bytes() || cell.place.stride > limits::kBytesMax ||
              cell.place.stride % kAlignmentBytes != 0))
      addCell(
          Rule::Ring, c,
          "the slots of ring '@{}' of {} bytes are {} bytes apart; they need to be at least as far "
          "as they are "
          "large, and a multiple of {}",
          cell.name, cell.type.bytes(), cell.place.stride, kAlignmentBytes);
  }

  Extent hullOf(const Place &place, int64_t bytes) const {
    Place first = place;
    first.slots = 1;
    Range range = Range::of(first, bytes, indices_);
    return {place.arena, range.hullBegin(indices_), range.hullEnd(indices_), kNone};
  }

  void findExtents() {
    for (uint32_t c = 0; c < role_.cells.size(); ++c) {
      const Cell &cell = role_.cells[c];
      if (!cell.isRing() || !cell.place.placed)
        continue;
      rings_.push_back(hullOf(cell.place, cell.bytes()));
      rings_.back().cell = c;
    }
    std::ranges::sort(rings_, {}, &Extent::key);
    for (size_t i = 1; i < rings_.size(); ++i)
      if (rings_[i - 1].arena == rings_[i].arena && rings_[i].begin < rings_[i - 1].end)
        addOverlap(rings_[i].cell, fmt::format("ring '@{}'", role_.cells[rings_[i - 1].cell].name));
    for (uint32_t c = 0; c < role_.cells.size(); ++c)
      if (const Cell &cell = role_.cells[c]; !cell.isRing() && cell.place.placed)
        if (const Extent *ring = ringWith(hullOf(cell.place, cell.type.bytes())))
          addOverlap(ring->cell, fmt::format("cell '@{}'", cell.name));
  }

  void addOverlap(uint32_t ring, std::string_view other) {
    addCell(Rule::Ring, ring, "{} uses bytes of ring '@{}', which only the ring may use", other,
            role_.cells[ring].name);
  }

  /// A ring with bytes of the range; null if there is none.
  const Extent *ringWith(const Extent &range) const {
    auto after =
        std::ranges::lower_bound(rings_, std::pair(range.arena, range.end), {}, &Extent::key);
    if (after == rings_.begin())
      return nullptr;
    const Extent &before = *std::prev(after);
    return before.arena == range.arena && before.end > range.begin ? &before : nullptr;
  }

  void checkBoundary(const Scope &scope, const Segment::Boundary &boundary) {
    const Cell &cell = role_.cells[boundary.cell];
    bool isPlain = cell.kind == CellKind::Buffer && cell.arena != Arena::Host;
    if (boundary.shift == 0 || (isPlain && std::abs(boundary.shift) <= limits::kMicrobatchesMax))
      return;
    scope.addValue(finding::BoundaryShifts, scope.opOf(boundary.value), boundary.value,
                   boundary.shift, cell.name, cellKindInfo(cell.kind).word);
  }

  void checkValue(const Scope &scope, ValueId id) {
    const Value &value = scope.value(id);
    if (!value.place.placed || (rings_.empty() && value.place.slots == 1))
      return;
    int64_t bytes = value.type.bytes();
    const Extent *ring = ringWith(hullOf(value.place, bytes));
    if (value.place.slots == 1) {
      if (ring != nullptr)
        scope.addValue(finding::SlotNotNamed, scope.opOf(id), id, role_.cells[ring->cell].name);
      return;
    }
    if (ring == nullptr || !isInSlot(value.place, bytes, role_.cells[ring->cell].place))
      scope.addValue(finding::NoSuchRing, scope.opOf(id), id, value.place.slots,
                     value.place.stride);
  }

  /// Views of what lies in a ring may move within its slots.
  bool isInSlot(const Place &place, int64_t bytes, const Place &ring) const {
    if (place.slots != ring.slots || place.stride != ring.stride ||
        std::abs(place.shift) > limits::kMicrobatchesMax)
      return false;
    if (ring.coef == 0) {
      Extent extent = hullOf(place, bytes);
      return extent.begin >= ring.offset && extent.end <= ring.offset + ring.stride;
    }
    return place.coef == ring.coef && place.group == ring.group && place.offset >= ring.offset &&
           place.offset - ring.offset <= ring.stride - bytes;
  }

  Indices indices_;
  std::vector<Extent> rings_; ///< by arena and begin
};

} // namespace

FlatPlan flattened(const Plan &plan) {
  FlatPlan flat{plan, {}};
  for (Role &role : flat.plan.roles)
    flat.rings.push_back(flatten(role));
  return flat;
}

void checkRings(Inspection &inspection) {
  for (uint32_t role = 0; role < inspection.plan().roles.size() && inspection.size() == 0; ++role)
    RingCheck(inspection, role).run();
}

} // namespace shardc::plan::verifier
