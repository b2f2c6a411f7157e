// Applies MOVE rows to values.
#include "runtime/verify/spec/Moves.h"

#include <fmt/format.h>

namespace shardc::plan::spec {
std::span<const Move> allMoves() {
  static constexpr Move kMoves[] = {
#define MOVE(op, place, order, placeAfter, orderAfter)                                             \
  {OpKind::op, form::place, Layout::order, form::placeAfter, Layout::orderAfter},
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
  if (order.inner % n != 0 || x.hasRowsOfAll() || !isOutermost)
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
  if (x.hasRowsOfAll() || (first.isMirrored && !isInnermostSlice(from, axes)))
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

/// Places the value along the axis. `outer`: see Place::outer, for rows that are Taken.
void Mover::put(State &x, uint16_t axis, Form form, int64_t outer) const {
  x.remove(axis);
  if (form == form::Own && contains(dataAxes_, axis))
    x.put({axis, Place::Instance});
  else if (form != form::Whole)
    x.put({.axis = axis,
           .kind = form.kind,
           .outer = form == form::Taken ? outer : 1,
           .rows = form.rows});
}

/// Applies the rows for the value along these axes, which must change its order in the same way.
State Mover::movedAlong(const Moving &how, const State &from, const std::vector<uint16_t> &axes) {
  State x = from;
  const Move *first = nullptr;
  int64_t outer = 1; // for routed rows, the number of parts into which earlier axes divide experts
  for (uint16_t axis : axes) {
    const Place *place = from.at(axis);
    const Form form = place ? Form{place->kind, place->rows} : form::Whole;
    auto row = std::ranges::find_if(rows_, [&](const Move &each) {
      return each.kind == how.kind &&
             (each.place == form || (each.place == form::Own && form == form::Instance));
    });
    auto isTaken = [](const Move &move) { return move.placeAfter == form::Taken; };
    bool isLike = row != rows_.end() && !(place && place->isSummed) &&
                  (!first || (row->order == first->order && isTaken(*row) == isTaken(*first)));
    if (!isLike)
      return refuse(fmt::format("takes {} along {}, for which there is no MOVE row",
                                wordOf(place ? *place : Place{axis, Place::Whole}),
                                mesh_.name(axis)));
    if (form == form::Taken && place->outer != outer)
      return refuse(fmt::format("takes rows of other experts along {}", mesh_.name(axis)));
    if (row->order == Layout::Dims && !from->order.isOfDims())
      return refuse("takes elements that are in a different order");
    if (row->placeAfter != form::Shard) // which take() puts
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
