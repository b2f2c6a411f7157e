// A Mamba-2 mixer in place of attention, as in Nemotron-H: products of the hidden state give gates,
// values, keys and queries, and the step of each head. Values, keys and queries are convolved along
// the sequence; a norm of groups follows the scan.
#pragma once

#include <array>

#include "compiler/model/Parts.h"

namespace shardc::model {

/// A group has a query and a key head, which serve heads / groups heads. The state of a head is
/// [stateSize, headSize].
struct MambaSettings : MixerSettings {
  int64_t groups = 1, heads = 1, stateSize = 1, headSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-5;
};

/// x and the result are [B,S,hidden].
class Mamba : public Module {
public:
  explicit Mamba(const MambaSettings &settings);

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Values, keys or queries [B,S,heads,size]: a product, convolved.
  plan::ValueId convolved(Forward &to, plan::ValueId x, size_t part) const;

  MambaSettings s_;
  std::array<Linear, 5> in_; ///< gates, values, keys, queries, steps
  Linear out_;
};

} // namespace shardc::model
