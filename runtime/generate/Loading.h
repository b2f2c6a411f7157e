// Reads weights part by part in several threads. While some threads read, the device receives the
// parts that others have read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/generate/Work.h"
#include "runtime/plan/Plan.h"

namespace shardc::generate {

/// Reads `count` rows of a tensor of a checkpoint, from row `first` on, into `dst`. `type` is that
/// of the whole tensor. It may have more rows than the checkpoint's tensor, which has no padding of
/// the vocabulary; these rows must be set to zero. Called by several threads at the same time,
/// unless they are limited to one.
using ReadTensor = std::function<Status(const std::string &name, const plan::Type &type,
                                        int64_t first, int64_t count, void *dst)>;

/// A parameter, and the memory of the device for its cell.
struct Destination {
  const plan::Param *param;
  plan::Type cell;
  Block block;
};

/// Reads all parameters in at most `threads` threads. Parameters in NF4 are read in fp32 and then
/// quantised.
Status loadWeights(Work &work, const std::vector<Destination> &to, const ReadTensor &read,
                   int threads);

} // namespace shardc::generate
