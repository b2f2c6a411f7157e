#include "compiler/model/ShortConv.h"

#include "compiler/model/Forward.h"

namespace shardc::model {

using plan::Op;
using plan::OpKind;
using plan::ValueId;

static constexpr const char *kFilter = "short_conv.conv.weight";

/// The rows of the first product are input gates, output gates and values, in this order.
ShortConv::ShortConv(const ShortConvSettings &settings)
    : s_(settings), in_{ParamKind::ConvIn, "short_conv.in_proj", times(3, s_.hidden), s_.hidden},
      out_{ParamKind::Projection, "short_conv.out_proj", s_.hidden, s_.hidden} {
  in_.initStd = s_.initStd, in_.parts = 3;
  out_.initStd = s_.residualStd, out_.cut = Linear::Sum;
  in_.adapter = s_.adapters.find(in_.stem, in_.in);
  out_.adapter = s_.adapters.find(out_.stem, out_.in);
}

void ShortConv::declare(Params &params) const {
  in_.declare(params);
  params.push_back(
      {ParamKind::Conv, kFilter, {s_.hidden, s_.taps}, plan::InitKind::Normal, s_.initStd});
  params.back().split = TensorSplit{};
  out_.declare(params);
}

ValueId ShortConv::forward(Forward &to, ValueId x) const {
  const int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  ValueId gates = in_.apply(to, x, "conv.in");
  Op conv = to.op(OpKind::ShortConv, {gates, to.weight(kFilter), to.batch().docs});
  conv.set(plan::AttrKey::reset_mask, int64_t{s_.resetMask});
  ValueId y = to.emit(std::move(conv), to.name("conv"), to.activations({b, s, s_.hidden}));
  return to.dropout(out_.apply(to, y, "proj"), s_.hiddenDropout, "proj.drop");
}

} // namespace shardc::model
