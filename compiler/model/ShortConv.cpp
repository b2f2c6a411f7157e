// A gated convolution along the sequence in place of attention, as in LFM2: a product gives each
// channel an input gate, an output gate and a value; another one follows the convolution.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {
namespace {

constexpr const char *kFilter = "short_conv.conv.weight";

/// x and the result are [B,S,hidden].
class ShortConv : public Module {
public:
  /// The rows of the first product are input gates, output gates and values, in this order.
  explicit ShortConv(const ShortConvSettings &settings)
      : s_(settings), in_{ParamKind::ConvIn, "short_conv.in_proj", times(3, s_.hidden), s_.hidden},
        out_(s_.output("short_conv.out_proj", s_.hidden)) {
    in_.initStd = s_.initStd, in_.parts = 3;
    in_.adapter = s_.adapters.find(in_.stem, in_.in);
  }

  void declare(Params &params) const override {
    in_.declare(params);
    params.push_back(
        {ParamKind::Conv, kFilter, {s_.hidden, s_.taps}, plan::InitKind::Normal, s_.initStd});
    params.back().split = TensorSplit{};
    out_.declare(params);
  }

  ValueId forward(Forward &to, ValueId x) const override {
    const int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    ValueId gates = in_.apply(to, x, "conv.in");
    Op conv = to.op(OpKind::ShortConv, {gates, to.weight(kFilter), to.batch().docs});
    conv.set(plan::AttrKey::reset_mask, int64_t{s_.resetMask});
    ValueId y = to.emit(std::move(conv), to.name("conv"), to.activations({b, s, s_.hidden}));
    return to.dropout(out_.apply(to, y, "proj"), s_.hiddenDropout, "proj.drop");
  }

private:
  ShortConvSettings s_;
  Linear in_, out_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const ShortConvSettings &settings) {
  return std::make_unique<ShortConv>(settings);
}

} // namespace shardc::model
