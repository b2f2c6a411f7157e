// What the conversions share: tensors cut into pieces of rows, and the pieces dealt to the ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/Convert.h"

namespace shardc::checkpoint {

/// A tensor to be converted: how big it is, and what reads rows of it and saves them.
struct ConvertJob {
  std::string name;
  Element type = Element::F32;
  Shape shape;
  /// Reads the box at `offset` of `shape` into `dst`.
  std::function<Status(ShapeView offset, ShapeView shape, void *dst)> read;
  /// Saves it.
  std::function<Status(RankWriter &writer, const Shape &offset, const Shape &shape,
                       const void *data)>
      write;
};

/// Runs this rank's share of the jobs, then `objects` on rank 0, and finishes the rank.
Status runJobs(const SaveTarget &out, std::vector<ConvertJob> jobs, int64_t pieceBytes,
               const ConvertProgress &progress, const ConvertRank &rank,
               const std::function<Status(RankWriter &)> &objects);

} // namespace shardc::checkpoint
