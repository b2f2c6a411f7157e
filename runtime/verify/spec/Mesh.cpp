// Computes which elements of a value a shard contains.
#include <algorithm>

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

std::vector<uint16_t> Mesh::axesOf(int group) const {
  std::vector<uint16_t> axes;
  if (group >= 0)
    for (uint16_t axis : plan_.groups[static_cast<size_t>(group)].axes)
      if (size(axis) > 1)
        axes.push_back(axis);
  return axes;
}

uint64_t Mesh::bitsOf(const std::vector<uint16_t> &axes) {
  uint64_t bits = 0;
  for (uint16_t axis : axes)
    bits |= bitOf(axis);
  return bits;
}

int64_t Mesh::members(const std::vector<uint16_t> &axes) const {
  int64_t count = 1;
  for (uint16_t axis : axes)
    count *= size(axis);
  return count;
}

Multiple Mesh::shards(const State &state, uint16_t axis) const {
  Multiple shards;
  shards.multiply(size(axis));
  if (state->cover.isPiece() && state->cover.axis == axis)
    shards.divide(std::ranges::count(state->cover.slices, true));
  return shards;
}

std::vector<const Place *> cutsOf(const State &state) {
  std::vector<const Place *> cuts;
  for (const Place &place : state->places)
    if (place.kind == Place::Shard)
      cuts.push_back(&place);
  std::ranges::stable_sort(cuts, {}, &Place::outer);
  return cuts;
}

int64_t Mesh::localOuter(const State &state, int64_t outer) const {
  int64_t local = outer;
  for (const Place &place : state->places)
    if (place.kind == Place::Shard && place.outer < outer)
      local = shards(state, place.axis).dividing(local);
  return local;
}

int64_t Mesh::wholeOuter(const State &state, int64_t outer, bool isOfSlices) const {
  for (const Place *shard : cutsOf(state)) // a shard that cuts at `outer` itself is outside of it
    if (shard->outer <= outer && !(isOfSlices && shard->isMirrored))
      outer = shards(state, shard->axis).times(outer);
  return outer;
}

Type Mesh::wholeOf(const State &state, Type type) const {
  int64_t before = 1;
  std::vector<const Place *> cuts = cutsOf(state);
  size_t next = 0;
  for (uint8_t d = 0; d < type.rank; ++d) {
    // A cut before the dimension's end belongs to the dimension. A dimension of size 1 gets a cut
    // at its begin only if no later dimension can have it.
    while (next < cuts.size() && (cuts[next]->outer < before * type.shape[d] ||
                                  (cuts[next]->outer == before && d + 1 == type.rank)))
      type.shape[d] = shards(state, cuts[next++]->axis).times(type.shape[d]);
    before *= type.shape[d];
  }
  return type;
}

} // namespace shardc::plan::spec
