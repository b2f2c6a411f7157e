// The feed-forward layer: a product, an activation, and another product. With a gate, the first
// product computes the columns of the gate and then those of up, in Megatron's order.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {
namespace {

/// x has `hidden` columns, and so has the result. Dropout follows the second product.
class DenseMlp : public Module {
public:
  DenseMlp(const MlpSettings &settings, const std::string &stem, std::string what, ParamKind kind)
      : s_(settings), fc1_{kind,
                           stem + "linear_fc1",
                           s_.gated ? times(2, s_.width) : s_.width,
                           s_.hidden,
                           s_.hasBias,
                           s_.initStd,
                           Linear::Columns,
                           s_.gated ? 2 : 1},
        fc2_{kind,       stem + "linear_fc2", s_.hidden,  s_.width,
             s_.hasBias, s_.residualStd,      Linear::Sum},
        what_(std::move(what)) {
    fc1_.adapter = s_.adapters.find(fc1_.stem, fc1_.in, {1, fc1_.parts, fc1_.parts});
    fc2_.adapter = s_.adapters.find(fc2_.stem, fc2_.in);
  }

  void declare(Params &params) const override {
    fc1_.declare(params);
    fc2_.declare(params);
  }

  ValueId forward(Forward &to, ValueId x) const override {
    ValueId f1 = fc1_.apply(to, x, (what_ + "fc1").c_str());
    Type type = to.typeOf(f1);
    type.shape[type.rank - 1u] = s_.width;
    Op activation = to.op(s_.activation, {f1});
    setActivation(activation, s_);
    ValueId a = to.emit(std::move(activation), to.name((what_ + "act").c_str()), type);
    return to.dropout(fc2_.apply(to, a, (what_ + "fc2").c_str()), s_.hiddenDropout,
                      (what_ + "fc2.drop").c_str());
  }

private:
  MlpSettings s_;
  Linear fc1_, fc2_;
  std::string what_;
};

} // namespace

void setActivation(Op &op, const MlpSettings &settings) {
  op.set(Key::tanh_approx, int64_t{settings.tanhApprox}).set(Key::clamp, settings.clamp);
  op.set(Key::linear_offset, settings.linearOffset);
}

std::unique_ptr<const Module> makeModule(const MlpSettings &settings, const std::string &stem,
                                         std::string what, ParamKind kind) {
  return std::make_unique<DenseMlp>(settings, stem, std::move(what), kind);
}

} // namespace shardc::model
