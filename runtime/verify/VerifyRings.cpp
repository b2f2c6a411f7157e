// Checks that no other buffer uses bytes of a ring, and replaces each ring slot by a cell.
#include "runtime/verify/VerifyRings.h"

#include <algorithm>
#include <map>

#include "runtime/plan/Limits.h"
#include "runtime/verify/VerifyImpl.h"

namespace shardc::plan::verifier {

const RoleRings &Inspection::ringsOf(uint32_t role) const {
  static const RoleRings kNoRings;
  return rings_ == nullptr ? kNoRings : (*rings_)[role];
}

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

bool hasRings(const Plan &plan) {
  return std::ranges::any_of(
      plan.roles, [](const Role &role) { return std::ranges::any_of(role.cells, &Cell::isRing); });
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
  // For each cell the cells of its slots; the first is the cell itself.
  std::vector<std::vector<uint32_t>> slots(role.cells.size());
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
    if (own.isRing())
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

/// Checks the properties of rings on which it depends that a check of microbatch 0 covers all.
class RingCheck : RoleCheck {
public:
  RingCheck(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), indices_(plan_, role_) {}

  void run() {
    for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c)
      checkCell(c);
    if (report_.size() != 0)
      return;
    checkApart();
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
  void checkCell(uint32_t c) {
    const Cell &cell = role_.cells[c];
    if (cell.isRing() && cell.kind != CellKind::Buffer)
      addCell(finding::RingNoBuffer, c, cellKindInfo(cell.kind).word);
    if (!cell.place.placed)
      return;
    if (cell.place.slots != cell.slots || cell.place.shift != 0)
      addCell(finding::SlotsOfPlace, c, cell.place.slots, cell.slots);
    else if (cell.isRing() &&
             (cell.place.stride < cell.type.bytes() || cell.place.stride > limits::kBytesMax ||
              cell.place.stride % kAlignmentBytes != 0))
      addCell(finding::SlotsApart, c, cell.type.bytes(), cell.place.stride, kAlignmentBytes);
  }

  Hull hullOf(const Place &place, int64_t bytes) const {
    Place first = place;
    first.slots = 1;
    return Range::of(first, bytes, indices_).hull(indices_);
  }

  /// Checks that no other cell uses bytes of a ring.
  void checkApart() {
    for (bool isRing : {true, false})
      for (uint32_t c = 0; c < role_.cells.size() && !report_.isFull(); ++c) {
        const Cell &cell = role_.cells[c];
        if (cell.isRing() != isRing || !cell.place.placed)
          continue;
        if (uint32_t ring = ringWith(cell.place, cell.bytes()); ring != kNone)
          addCell(finding::LiesInRing, ring,
                  fmt::format("{} '@{}'", isRing ? "ring" : "cell", cell.name));
        else if (Hull hull = hullOf(cell.place, cell.bytes()); isRing)
          rings_[{cell.place.arena, hull.begin}] = {hull.end, c};
      }
  }

  /// The ring that overlaps the place on some rank; kNone if there is none.
  uint32_t ringWith(const Place &place, int64_t bytes) const {
    Hull hull = hullOf(place, bytes);
    auto behind = rings_.lower_bound({place.arena, hull.end});
    if (behind == rings_.begin())
      return kNone;
    const auto &[begin, ring] = *std::prev(behind);
    return begin.first == place.arena && ring.first > hull.begin ? ring.second : kNone;
  }

  void checkBoundary(const Scope &scope, const Segment::Boundary &boundary) {
    const Cell &cell = role_.cells[boundary.cell];
    bool isPlain =
        cell.kind == CellKind::Buffer && std::abs(boundary.shift) <= limits::kMicrobatchesMax;
    if (boundary.shift == 0 || isPlain)
      return;
    scope.addValue(finding::BoundaryShifts, scope.opOf(boundary.value), boundary.value,
                   boundary.shift, cell.name, cellKindInfo(cell.kind).word);
  }

  void checkValue(const Scope &scope, ValueId id) {
    const Value &value = scope.value(id);
    if (!value.place.placed || (value.place.slots == 1 && rings_.empty()))
      return;
    int64_t bytes = value.type.bytes();
    uint32_t ring = ringWith(value.place, bytes);
    if (value.place.slots == 1) {
      if (ring != kNone)
        scope.addValue(finding::SlotNotNamed, scope.opOf(id), id, role_.cells[ring].name);
      return;
    }
    if (ring == kNone || !isInSlot(value.place, bytes, role_.cells[ring].place))
      scope.addValue(finding::NoSuchRing, scope.opOf(id), id, value.place.slots,
                     value.place.stride);
  }

  /// Whether the place lies inside the slots of the ring. A view may move within a slot.
  bool isInSlot(const Place &place, int64_t bytes, const Place &ring) const {
    if (place.slots != ring.slots || place.stride != ring.stride ||
        std::abs(place.shift) > limits::kMicrobatchesMax)
      return false;
    if (ring.coef == 0) {
      Hull hull = hullOf(place, bytes);
      return hull.begin >= ring.offset && hull.end <= ring.offset + ring.stride;
    }
    return place.coef == ring.coef && place.group == ring.group && place.offset >= ring.offset &&
           place.offset - ring.offset <= ring.stride - bytes;
  }

  Indices indices_;
  /// Ends and cells of the rings, by the first of the bytes that they have on any rank of the role.
  std::map<std::pair<Arena, int64_t>, std::pair<int64_t, uint32_t>> rings_;
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
