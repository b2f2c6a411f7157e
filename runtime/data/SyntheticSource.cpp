// Samples without data: the counter-based generator draws their tokens.
#include "runtime/data/Sources.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/base/Philox.h"
#include "runtime/base/Reports.h"

namespace shardc::data {
namespace {

/// Returns a token for 32 random bits, taken as u in [0, 1): vocabSize * u^4, so that half of all
/// tokens lie in the lowest sixteenth of the vocabulary. Uses only products, so that all machines
/// round in the same way.
int32_t skewedToken(uint32_t bits, int64_t vocabSize) {
  double u = static_cast<double>(bits) * 0x1p-32;
  double u2 = u * u;
  return static_cast<int32_t>(static_cast<double>(vocabSize) * (u2 * u2));
}

/// Makes the halves of the sample the two answers of a pair, with the same reference for both.
void makePair(Sample &out) {
  const size_t middle = out.tokens.size() / 2;
  std::ranges::fill(out.reference, 1.0f);
  if (!out.documentStarts.empty())
    out.documentStarts[1] = static_cast<int32_t>(middle);
  out.numDocuments = 2;
  if (!out.positionIds.empty())
    std::iota(out.positionIds.begin() + static_cast<std::ptrdiff_t>(middle), out.positionIds.end(),
              0);
}

class SyntheticSource : public DataSource {
public:
  SyntheticSource(int64_t vocabSize, int64_t sequenceLength, uint64_t seed, Split split)
      : name_(fmt::format("synthetic {} data", splitName(split))), vocabSize_(vocabSize),
        sequenceLength_(sequenceLength),
        key_(streamKey(seed, fmt::format("data.synthetic.{}", splitName(split)))) {}

  const std::string &name() const override { return name_; }
  int64_t numSamples() const override { return kUnbounded; }
  int64_t sequenceLength() const override { return sequenceLength_; }

  /// Each Philox block gives four tokens. Its counter is the sample's index and the position, so
  /// any sample can be drawn without those before it.
  Status sample(int64_t index, Sample &out) const override {
    if (index < 0)
      return makeStatus(report::DataRefused, "{} have no sample {}", name_, index);
    SHARDC_CHECK(static_cast<int64_t>(out.tokens.size()) == sequenceLength_,
                 "a sample of {} tokens for sequences of {}", out.tokens.size(), sequenceLength_);
    auto sample = static_cast<uint64_t>(index);
    PhiloxBlock block = {};
    int32_t following = 0;
    for (size_t i = 0; i <= out.tokens.size(); ++i) {
      if (i % 4 == 0)
        block = philox4x32({static_cast<uint32_t>(i / 4), 0, static_cast<uint32_t>(sample),
                            static_cast<uint32_t>(sample >> 32)},
                           key_);
      int32_t token = skewedToken(block[i % 4], vocabSize_);
      if (i < out.tokens.size())
        out.tokens[i] = token;
      else
        following = token;
    }
    fillTargets(out, following, sequenceLength_, DocumentOptions());
    if (!out.reference.empty())
      makePair(out);
    return Status::ok();
  }

private:
  std::string name_;
  int64_t vocabSize_;
  int64_t sequenceLength_;
  uint64_t key_;
};

} // namespace

Result<std::unique_ptr<DataSource>> openSynthetic(int64_t vocabSize, int64_t sequenceLength,
                                                  uint64_t seed, Split split) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (vocabSize < 1 || vocabSize > kMax)
    return makeStatus(report::DataRefused,
                      "synthetic data of a vocabulary of {} tokens; it must have from 1 to {}",
                      vocabSize, kMax);
  if (sequenceLength < 1 || sequenceLength >= kMax)
    return makeStatus(report::DataRefused, "a sequence length of {} is not between 1 and {}",
                      sequenceLength, kMax - 1);
  return std::unique_ptr<DataSource>(new SyntheticSource(vocabSize, sequenceLength, seed, split));
}

} // namespace shardc::data
