// Applies MOVE rows to values.
#include "runtime/verify/spec/Moves.h"

#include <fmt/format.h>

namespace shardc::plan::spec {
namespace {

/// What the value is along the axis; none if MOVE rows have no such combination.
std::optional<Place::Kind> kindOf(const State &x, uint16_t axis) {
  const Place *place = x.at(axis);
  bool isSlots = (x->slots & bitOf(axis)) != 0, isPooled = (x->pooled & bitOf(axis)) != 0;
  if (!isSlots && !isPooled)
    return place ? place->kind : Place::Whole;
  if (place == nullptr)
    return isSlots ? Place::Slots : Place::Pooled;
  if (place->kind != Place::Part)
    return std::nullopt;
  return isSlots ? Place::PartOfSlots : Place::PartOfPooled;
}

bool isRouted(Place::Kind kind) { return kind == Place::Routed || kind == Place::RoutedOwn; }

/// `outer`: see Place::outer, for routed rows.
void put(State &x, uint16_t axis, Place::Kind kind, int64_t outer) {
  x.remove(axis);
  x.edit().slots &= ~bitOf(axis), x.edit().pooled &= ~bitOf(axis);
  if (kind == Place::Slots)
    x.edit().slots |= bitOf(axis);
  else if (kind == Place::Pooled)
    x.edit().pooled |= bitOf(axis);
  else if (kind < Place::Whole)
    x.put({axis, kind, isRouted(kind) ? outer : 1});
}

} // namespace

std::span<const Move> allMoves() {
  static constexpr Move kMoves[] = {
#define MOVE(op, place, order, placeAfter, orderAfter)                                             \
  {OpKind::op, Place::place, Layout::order, Place::placeAfter, Layout::orderAfter},
#include "runtime/verify/spec/Spec.def"
  };
  return kMoves;
}

bool Mover::isInnermostSlice(const State &state, const std::vector<uint16_t> &axes) const {
  std::vector<uint16_t> context = mesh_.axesOf(GroupKind::Context);
  return std::none_of(std::ranges::find(context, axes[0]), context.end(), [&](uint16_t other) {
    return !contains(axes, other) && state.at(other) && state.at(other)->isMirrored;
  });
}

bool Mover::take(State &x, const std::vector<uint16_t> &axes) const {
  Order order = x->order;
  int64_t n = mesh_.members(axes);
  if (order.isOfDims() && x->copies == 1)
    order.inner = n; // parts of the first dimension
  std::vector<uint16_t> slices = mesh_.axesOf(GroupKind::Context);
  std::erase_if(slices, [&](uint16_t axis) { return (order.slices & bitOf(axis)) == 0; });
  bool isOutermost = slices.empty() || slices == axes || axes == std::vector{slices[0]};
  if (order.inner % n != 0 || x->pooled != 0 || !isOutermost)
    return false;
  const bool isOfSlices = order.slices != 0,
             isExchange = !axes.empty() && x.is(axes[0], Place::Shard);
  int64_t outer = mesh_.wholeOuter(x, order.outer, isOfSlices);
  for (uint16_t axis : axes) { // other shards may lie between these, unless they replace others
    x.put({axis, Place::Shard, outer, isOfSlices});
    outer = isExchange ? outer * (isOfSlices ? 1 : mesh_.size(axis))
                       : mesh_.wholeOuter(x, order.outer, isOfSlices);
  }
  order.inner /= n, order.slices &= ~Mesh::bitsOf(axes);
  x.edit().order = order.isOfDims() ? Order() : order;
  x.edit().copies = 1;
  return true;
}

/// Puts the parts that the members have in `from` one after the other in front of all other
/// dimensions of `x`.
bool Mover::gather(const State &from, State &x, const std::vector<uint16_t> &axes) const {
  const Place &first = *from.at(axes[0]);
  Order order = {mesh_.localOuter(x, first.outer), mesh_.members(axes),
                 first.isMirrored ? Mesh::bitsOf(axes) : 0};
  for (uint16_t axis : axes) {
    const Place &place = *from.at(axis);
    bool isNext = place.distance == 0 && place.isMirrored == first.isMirrored &&
                  mesh_.localOuter(from, place.outer) == mesh_.localOuter(from, first.outer);
    if (!isNext)
      return false;
  }
  if (x->pooled != 0 || (first.isMirrored && !isInnermostSlice(from, axes)))
    return false;
  if (!x->order.isOfDims()) { // already gathered along the next inner axis
    if (x->order.outer != order.outer || (x->order.slices != 0) != first.isMirrored)
      return false;
    order.inner *= x->order.inner, order.slices |= x->order.slices;
  }
  x.edit().order = order.outer == 1 && order.slices == 0 ? Order() : order;
  return true;
}

bool Mover::shift(State &x, const std::vector<uint16_t> &axes, int64_t by) const {
  const Place *first = x.at(axes[0]);
  int64_t n = mesh_.members(axes), distance = ((first->distance + by) % n + n) % n;
  for (uint16_t axis : axes) {
    const Place &place = *x.at(axis);
    if (place.distance != first->distance ||
        (place.distance != 0 && place.isOfSeveral != (axes.size() > 1)))
      return false;
  }
  for (uint16_t axis : axes) {
    Place place = *x.at(axis);
    place.distance = distance, place.isOfSeveral = distance != 0 && axes.size() > 1;
    x.put(place);
  }
  return true;
}

/// Applies the rows for the value along these axes, which must change its order in the same way.
State Mover::movedAlong(const Moving &how, const State &from, const std::vector<uint16_t> &axes) {
  State x = from;
  const Move *first = nullptr;
  int64_t outer = 1; // for routed rows, the number of parts into which earlier axes divide experts
  for (uint16_t axis : axes) {
    const std::optional<Place::Kind> kind = kindOf(from, axis);
    auto row = std::ranges::find_if(
        rows_, [&](const Move &each) { return each.kind == how.kind && each.place == kind; });
    bool isLike = kind && row != rows_.end() &&
                  (!first || (row->order == first->order &&
                              isRouted(row->placeAfter) == isRouted(first->placeAfter)));
    if (!isLike)
      return refuse(fmt::format("takes {} along {}, for which there is no MOVE row",
                                kindWord(kind.value_or(Place::Slots)), mesh_.name(axis)));
    if (row->order == Layout::Dims && !from->order.isOfDims())
      return refuse("takes elements that are in a different order");
    if (row->placeAfter != Place::Shard) // which take() puts
      put(x, axis, row->placeAfter, outer);
    outer *= mesh_.size(axis), first = &*row;
    if (how.isAverage)
      x.edit().multiple.divide(mesh_.size(axis));
  }
  if (how.kind == OpKind::Shift)
    return shift(x, axes, how.by) ? x : refuse("shifts slices of different members");
  bool isTaken = first->order != Layout::Outermost || take(x, axes);
  if (!isTaken || (first->orderAfter == Layout::Outermost && !gather(from, x, axes)))
    return refuse("takes elements that are in a different order");
  return x;
}

State Mover::moved(const Moving &how, State x) {
  why_.clear();
  if (how.kind == OpKind::AllToAll || how.kind == OpKind::Shift)
    return movedAlong(how, x, how.axes);
  bool isFromLast = how.kind == OpKind::AllGather;
  for (size_t i = 0; i < how.axes.size() && why_.empty(); ++i)
    x = movedAlong(how, x, {how.axes[isFromLast ? how.axes.size() - 1 - i : i]});
  return x;
}

} // namespace shardc::plan::spec
