#include "Pieces.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace shardc::plan::oracle {

void addTo(Pieces &into, const Pieces &more) {
  std::set<int64_t> bounds;
  for (const Pieces *all : {static_cast<const Pieces *>(&into), &more})
    for (const Piece &piece : *all) {
      bounds.insert(piece.begin);
      bounds.insert(piece.end);
    }
  Pieces sum;
  for (auto at = bounds.begin(); at != bounds.end() && std::next(at) != bounds.end(); ++at) {
    Piece piece{*at, *std::next(at), {}};
    for (const Pieces *all : {static_cast<const Pieces *>(&into), &more})
      for (const Piece &part : *all)
        if (part.begin <= piece.begin && piece.end <= part.end)
          for (auto [number, count] : part.counts)
            piece.counts[number] += count;
    sum.push_back(std::move(piece));
  }
  into = std::move(sum);
}

Pieces cut(const Pieces &from, int64_t begin, int64_t numel) {
  Pieces pieces;
  for (const Piece &piece : from) {
    int64_t first = std::max(piece.begin, begin), last = std::min(piece.end, begin + numel);
    if (first < last)
      pieces.push_back({first - begin, last - begin, piece.counts});
  }
  return pieces;
}

Pieces moved(Pieces pieces, int64_t by) {
  for (Piece &piece : pieces)
    piece.begin += by, piece.end += by;
  return pieces;
}

} // namespace shardc::plan::oracle
