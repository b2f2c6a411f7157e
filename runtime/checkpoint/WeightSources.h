// The weights of a model from several folders, for example of adapters and of their base model.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/checkpoint/NestedScales.h"
#include "runtime/checkpoint/ParamSource.h"
#include "runtime/plan/Plan.h"

namespace shardc::checkpoint {

/// A tensor is read from the first source that has it.
class WeightSources {
public:
  /// The plan, which must outlive the sources, says which numbers a run has in place of a tensor's:
  /// with `peft.quantize = nf4_double`, those whose scales are in 8 bits.
  static Result<std::unique_ptr<WeightSources>>
  open(const std::vector<std::string> &folders, const plan::Plan &plan, const ReportSink &emit);

  /// Reads `count` rows of a tensor, from row `first` on, into `dst`. `type`, of the whole tensor,
  /// may have more rows of a vocabulary than there are; these are set to zero.
  Status read(const std::string &name, const plan::Type &type, int64_t first, int64_t count,
              void *dst) const;

  /// A fingerprint of each tensor of the plan that a source has, for comparisons of models.
  Result<std::map<std::string, std::string>> fingerprints() const;

private:
  using Scales = std::shared_ptr<const NestedScales>;

  explicit WeightSources(const plan::Plan &plan) : plan_(plan) {}
  /// The parameter, if a run quantises its scales too.
  const plan::Param *nestedParam(const std::string &name) const;
  /// The scales of a whole weight. Those of the last weights are kept, since threads read parts of
  /// few weights at a time.
  Result<Scales> scalesOf(const ParamSource &source, const plan::Param &param) const;

  const plan::Plan &plan_;
  std::vector<std::unique_ptr<ParamSource>> sources_;
  mutable std::mutex mutex_;
  mutable std::deque<std::pair<const plan::Param *, Scales>> scales_; ///< of the last parameters
};

} // namespace shardc::checkpoint
