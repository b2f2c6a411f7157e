// A Mamba-2 mixer in place of attention, as in Nemotron-H: products of the hidden state give gates,
// values, keys and queries, and the step of each head. Values, keys and queries are convolved along
// the sequence; a norm of groups follows the scan.
#include <cmath>

#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {

using plan::InitKind;

namespace {

constexpr const char *kProducts[] = {"z", "x", "B", "C", "dt"};
constexpr const char *kRates = "mixer.A_log", *kStepBias = "mixer.dt_bias", *kDirect = "mixer.D",
                     *kNormWeight = "mixer.norm.weight";
constexpr size_t kOfZ = 0, kOfX = 1, kOfB = 2, kOfC = 3, kOfDt = 4;
constexpr int64_t kTaps = 4; ///< upstream's d_conv
constexpr double kRateEnd = 16, kStepEnd = 0.1;

std::string convOf(size_t part, const char *kind) {
  return std::string("mixer.conv1d.") + kind + "." + kProducts[part];
}

/// x and the result are [B,S,hidden].
class Mamba : public Module {
public:
  explicit Mamba(const MambaSettings &settings)
      : s_(settings), out_(s_.output("mixer.out_proj", times(s_.heads, s_.headSize))) {
    const int64_t keys = times(s_.groups, s_.stateSize);
    const int64_t rows[] = {out_.in, out_.in, keys, keys, s_.heads};
    for (size_t i = 0; i < in_.size(); ++i) {
      in_[i] = {ParamKind::MambaIn, "mixer.in_proj", rows[i], s_.hidden};
      in_[i].part = std::string(".") + kProducts[i], in_[i].initStd = s_.initStd;
    }
  }

  /// Initial values are upstream's: filters as PyTorch's convolutions, rates of decay from 1 to 16,
  /// and biases with which steps are from 0.001 to 0.1. Numbers of heads are fp32, because a state
  /// multiplies decays over thousands of positions.
  void declare(Params &params) const override {
    const double bound = 1 / std::sqrt(static_cast<double>(kTaps));
    for (const Linear &linear : in_)
      linear.declare(params);
    for (size_t i = kOfX; i <= kOfC; ++i) {
      params.push_back({ParamKind::Conv,
                        convOf(i, "weight"),
                        {in_[i].out, kTaps},
                        InitKind::Uniform,
                        bound,
                        TensorSplit{}});
      params.push_back({ParamKind::Bias,
                        convOf(i, "bias"),
                        {in_[i].out},
                        InitKind::Uniform,
                        bound,
                        TensorSplit{}});
    }
    for (auto [name, init, value] : {std::tuple(kRates, InitKind::LogUniform, kRateEnd),
                                     std::tuple(kStepBias, InitKind::StepBias, kStepEnd),
                                     std::tuple(kDirect, InitKind::Ones, 0.0)}) {
      params.push_back({ParamKind::Decay, name, {s_.heads}, init, value, TensorSplit{}});
      params.back().isExact = true;
    }
    params.push_back({ParamKind::Norm, kNormWeight, {out_.in}, InitKind::Ones, 0, TensorSplit{}});
    out_.declare(params);
  }

  ValueId forward(Forward &to, ValueId x) const override {
    const int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    const ValueId z = in_[kOfZ].apply(to, x, "z"), values = convolved(to, x, kOfX),
                  keys = convolved(to, x, kOfB), queries = convolved(to, x, kOfC),
                  steps = in_[kOfDt].apply(to, x, "dt");
    Op scan = to.op(OpKind::StateScan, {queries, keys, values, steps, to.weight(kRates),
                                        to.weight(kStepBias), to.weight(kDirect), to.batch().docs});
    scan.set(Key::reset_mask, int64_t{s_.resetMask});
    ValueId y = to.emit(std::move(scan), to.name("y"), to.typeOf(values));
    y = to.reshaped(y, "y.rows", {b, s, out_.in});
    Op norm = to.op(OpKind::GatedNorm, {y, z, to.weight(kNormWeight)});
    norm.set(Key::eps, s_.normEps).set(Key::parts, s_.groups);
    y = to.emitMany(std::move(norm), {{"gated", to.typeOf(y)},
                                      {"gated.rstd", Type::of(DType::F32, {b * s, s_.groups})}})[0];
    return to.dropout(out_.apply(to, y, "proj"), s_.hiddenDropout, "proj.drop");
  }

private:
  /// Values, keys or queries [B,S,heads,size].
  ValueId convolved(Forward &to, ValueId x, size_t part) const {
    return convolvedHeads(to, in_[part], x, kProducts[part],
                          part == kOfX ? s_.headSize : s_.stateSize, s_.resetMask,
                          convOf(part, "weight"), convOf(part, "bias"));
  }

  MambaSettings s_;
  std::array<Linear, 5> in_; ///< gates, values, keys, queries, steps
  Linear out_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const MambaSettings &settings) {
  return std::make_unique<Mamba>(settings);
}

} // namespace shardc::model
