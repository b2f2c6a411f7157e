// A gated delta net in place of attention, as in Qwen3-Next: products of the hidden state give
// queries, keys and values, which are convolved along the sequence, and the decay, strength and
// gate of each value head.
#pragma once

#include <array>

#include "compiler/model/Parts.h"

namespace shardc::model {

/// A key head serves valueHeads / keyHeads value heads. `taps`: how many positions convolutions
/// add. The state of a head is [keySize, valueSize].
struct DeltaNetSettings : MixerSettings {
  int64_t taps = 4;
  int64_t keyHeads = 1, valueHeads = 1, keySize = 1, valueSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-6;  ///< of the norm of each head's result
};

/// x and the result are [B,S,hidden].
class DeltaNet : public Module {
public:
  explicit DeltaNet(const DeltaNetSettings &settings);

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Queries, keys or values [B,S,heads,size]: a product, convolved.
  plan::ValueId convolved(Forward &to, plan::ValueId x, size_t part) const;

  DeltaNetSettings s_;
  std::array<Linear, 6> in_; ///< queries, keys, values, gates, strengths, decays
  Linear out_;
  Norm norm_;
};

} // namespace shardc::model
