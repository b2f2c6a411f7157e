// A gated convolution along the sequence in place of attention, as in LFM2: a product gives each
// channel an input gate, an output gate and a value; another one follows the convolution.
#pragma once

#include "compiler/model/Parts.h"

namespace shardc::model {

/// `taps`: how many positions the convolution adds, its own and those before it.
struct ShortConvSettings : MixerSettings {
  int64_t taps = 3;
  bool resetMask = false; ///< the convolution does not reach into the document before
};

/// x and the result are [B,S,hidden].
class ShortConv : public Module {
public:
  explicit ShortConv(const ShortConvSettings &settings);

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  ShortConvSettings s_;
  Linear in_, out_;
};

} // namespace shardc::model
