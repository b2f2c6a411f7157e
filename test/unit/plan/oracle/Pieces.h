// The contributions that are summed in the elements of a value.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace shardc::plan::oracle {

using Number = uint64_t;

inline Number mix(Number a, Number b) {
  Number x =
      (a + 0x632be59bd9b4e019u) * 0x9e3779b97f4a7c15u ^ (b + 0x85157af5u) * 0xc2b2ae3d27d4eb4fu;
  return x ^ (x >> 29);
}

/// The number of times that each contribution occurs in the elements from `begin` to `end` - 1.
struct Piece {
  int64_t begin, end;
  std::map<Number, int> counts;
  bool operator==(const Piece &) const = default;
};
using Pieces = std::vector<Piece>;

/// Adds the contributions element by element.
void addTo(Pieces &into, const Pieces &more);
/// The pieces of `numel` elements from `begin` on, with `begin` as element 0.
Pieces cut(const Pieces &from, int64_t begin, int64_t numel);
/// The pieces, shifted by `by` elements.
Pieces moved(Pieces pieces, int64_t by);

} // namespace shardc::plan::oracle
