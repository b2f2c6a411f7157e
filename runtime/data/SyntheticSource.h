// A source of samples without data: the counter-based generator draws tokens from a skewed
// distribution, so that a model has something to learn (small tokens are frequent) and every
// machine draws the same tokens.
#pragma once

#include "runtime/data/Blend.h"
#include "runtime/data/Sample.h"

namespace shardc::data {

class SyntheticSource : public DataSource {
public:
  /// Draws tokens in [0, vocabSize). The seed and the split select the random stream. The source
  /// has no end.
  static Result<SyntheticSource> create(int64_t vocabSize, int64_t sequenceLength, uint64_t seed,
                                        Split split);

  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return kUnbounded; }
  int64_t sequenceLength() const override { return sequenceLength_; }
  Status sample(int64_t index, Sample &out) const override;

private:
  SyntheticSource() = default;

  std::string name_;
  int64_t vocabSize_ = 0;
  int64_t sequenceLength_ = 0;
  uint64_t key_ = 0;
};

} // namespace shardc::data
