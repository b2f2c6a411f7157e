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

int64_t Mesh::members(uint64_t axes) const {
  int64_t count = 1;
  for (uint16_t axis = 0; axis < plan_.mesh.size(); ++axis)
    count *= (axes & bitOf(axis)) != 0 ? size(axis) : 1;
  return count;
}

int64_t Mesh::localOuter(const State &state, int64_t outer, int except) const {
  int64_t local = outer;
  for (const Place &place : state->places)
    if (place.kind == Place::Shard && place.outer < outer && place.axis != except)
      local /= size(place.axis);
  return local;
}

int64_t Mesh::wholeOuter(const State &state, int64_t outer) const {
  std::vector<const Place *> shards;
  for (const Place &place : state->places)
    if (place.kind == Place::Shard)
      shards.push_back(&place);
  std::ranges::sort(shards, {}, &Place::outer);
  // A shard that divides exactly at `outer` divides the dimension outside of it, so it counts.
  for (const Place *shard : shards)
    if (shard->outer <= outer)
      outer *= size(shard->axis);
  return outer;
}

Type Mesh::wholeOf(const State &state, Type type) const {
  int64_t before = 1;
  std::vector<const Place *> shards;
  for (const Place &place : state->places)
    if (place.kind == Place::Shard)
      shards.push_back(&place);
  std::ranges::sort(shards, {}, &Place::outer);
  size_t next = 0;
  for (uint8_t d = 0; d < type.rank; ++d) {
    // A shard belongs to the dimension before whose end it divides the elements. If a dimension has
    // size 1, a shard that begins there belongs to a later dimension, if there is one.
    while (next < shards.size() && (shards[next]->outer < before * type.shape[d] ||
                                    (shards[next]->outer == before && d + 1 == type.rank)))
      type.shape[d] *= size(shards[next++]->axis);
    before *= type.shape[d];
  }
  return type;
}

} // namespace shardc::plan::spec
