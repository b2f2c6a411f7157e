#include "compiler/model/DenseMlp.h"

#include "compiler/model/Forward.h"

namespace shardc::model {

DenseMlp::DenseMlp(const MlpSettings &settings, const std::string &stem, std::string what,
                   ParamKind kind)
    : s_(settings), fc1_{kind,
                         stem + "linear_fc1",
                         s_.gated ? times(2, s_.width) : s_.width,
                         s_.hidden,
                         s_.hasBias,
                         s_.initStd,
                         Linear::Columns,
                         s_.gated ? 2 : 1},
      fc2_{kind, stem + "linear_fc2", s_.hidden, s_.width, s_.hasBias, s_.residualStd, Linear::Sum},
      what_(std::move(what)) {
  fc1_.adapter = s_.adapters.find(fc1_.stem, fc1_.in, {1, fc1_.parts, fc1_.parts});
  fc2_.adapter = s_.adapters.find(fc2_.stem, fc2_.in);
}

void setActivation(Op &op, const MlpSettings &settings) {
  op.set(plan::AttrKey::tanh_approx, int64_t{settings.tanhApprox});
  op.set(plan::AttrKey::clamp, settings.clamp);
  op.set(plan::AttrKey::linear_offset, settings.linearOffset);
}

void DenseMlp::declare(Params &params) const {
  fc1_.declare(params);
  fc2_.declare(params);
}

ValueId DenseMlp::forward(Forward &to, ValueId x) const {
  ValueId f1 = fc1_.apply(to, x, (what_ + "fc1").c_str());
  Type type = to.typeOf(f1);
  type.shape[type.rank - 1u] = s_.width;
  Op activation = to.op(s_.activation, {f1});
  setActivation(activation, s_);
  ValueId a = to.emit(std::move(activation), to.name((what_ + "act").c_str()), type);
  return to.dropout(fc2_.apply(to, a, (what_ + "fc2").c_str()), s_.hiddenDropout,
                    (what_ + "fc2.drop").c_str());
}

} // namespace shardc::model
