// The weights of a model from several folders, for example of adapters and of their base model.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/ModelWeights.h"
#include "runtime/plan/Plan.h"

namespace shardc::checkpoint {

/// A tensor is read from the first source that has it.
class WeightSources {
public:
  static Result<WeightSources> open(const std::vector<std::string> &folders,
                                    const ReportSink &emit);

  /// Reads `count` rows of a tensor, from row `first` on, into `dst`. `type`, of the whole tensor,
  /// may have more rows of a vocabulary than there are; these are set to zero.
  Status read(const std::string &name, const plan::Type &type, int64_t first, int64_t count,
              void *dst) const;

private:
  std::vector<ModelWeights> sources_;
};

} // namespace shardc::checkpoint
