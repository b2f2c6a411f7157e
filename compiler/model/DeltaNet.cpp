// A gated delta net in place of attention, as in Qwen3-Next: products of the hidden state give
// queries, keys and values, which are convolved along the sequence, and the decay, strength and
// gate of each value head.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {
namespace {

constexpr const char *kParts[] = {"query", "key", "value", "z", "beta", "alpha"};
constexpr const char *kLog = "self_attention.A_log", *kBias = "self_attention.dt_bias";
constexpr size_t kConvolved = 3, kGates = 3, kStrengths = 4, kDecays = 5;
constexpr double kUnitEps = 1e-6, kMaxRate = 16;

std::string filterOf(size_t part) {
  return std::string("self_attention.conv1d.weight.") + kParts[part];
}

/// x and the result are [B,S,hidden].
class DeltaNet : public Module {
public:
  explicit DeltaNet(const DeltaNetSettings &settings)
      : s_(settings),
        out_(s_.output("self_attention.out_proj", times(s_.valueHeads, s_.valueSize))),
        norm_({false, false, s_.normEps}, s_.valueSize, "self_attention.out_norm.", "o.normed") {
    const int64_t keys = times(s_.keyHeads, s_.keySize), values = out_.in;
    const int64_t rows[] = {keys, keys, values, values, s_.valueHeads, s_.valueHeads};
    for (size_t i = 0; i < in_.size(); ++i) {
      in_[i] = {i < kStrengths ? ParamKind::DeltaIn : ParamKind::DeltaGate,
                "self_attention.in_proj", rows[i], s_.hidden};
      in_[i].part = std::string(".") + kParts[i], in_[i].initStd = s_.initStd;
    }
  }

  /// Rates of decay begin with uniform numbers from 1 to 16, and biases with 1, as upstream. Both
  /// are fp32, because a state multiplies decays over thousands of positions.
  void declare(Params &params) const override {
    for (const Linear &linear : in_)
      linear.declare(params);
    for (size_t i = 0; i < kConvolved; ++i)
      params.push_back({ParamKind::Conv,
                        filterOf(i),
                        {in_[i].out, s_.taps},
                        plan::InitKind::Normal,
                        s_.initStd,
                        TensorSplit{}});
    for (auto [name, init, value] : {std::tuple(kLog, plan::InitKind::LogUniform, kMaxRate),
                                     std::tuple(kBias, plan::InitKind::Constant, 1.0)}) {
      params.push_back({ParamKind::Decay, name, {s_.valueHeads}, init, value, TensorSplit{}});
      params.back().isExact = true;
    }
    norm_.declare(params);
    out_.declare(params);
  }

  ValueId forward(Forward &to, ValueId x) const override {
    const int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    std::array<ValueId, kConvolved> heads;
    for (size_t i = 0; i < kConvolved; ++i)
      heads[i] = convolvedHeads(to, in_[i], x, kParts[i], i < 2 ? s_.keySize : s_.valueSize,
                                s_.resetMask, filterOf(i));
    ValueId z = in_[kGates].apply(to, x, "z.in"), beta = in_[kStrengths].apply(to, x, "beta"),
            alpha = in_[kDecays].apply(to, x, "alpha");
    Op rule = to.op(OpKind::DeltaRule, {heads[0], heads[1], heads[2], alpha, beta, to.weight(kLog),
                                        to.weight(kBias), to.batch().docs});
    rule.set(Key::eps, kUnitEps).set(Key::reset_mask, int64_t{s_.resetMask});
    ValueId o = to.emit(std::move(rule), to.name("o"), to.typeOf(heads[2]));
    z = to.reshaped(z, "z", {b, s, s_.valueHeads, s_.valueSize});
    Op gate = to.op(OpKind::Gate, {norm_.forward(to, o), z});
    gate.set(Key::silu, int64_t{1});
    o = to.emit(std::move(gate), to.name("gated"), to.typeOf(o));
    o = to.reshaped(o, "gated.rows", {b, s, out_.in});
    return to.dropout(out_.apply(to, o, "proj"), s_.hiddenDropout, "proj.drop");
  }

private:
  DeltaNetSettings s_;
  std::array<Linear, 6> in_; ///< queries, keys, values, gates, strengths, decays
  Linear out_;
  Norm norm_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const DeltaNetSettings &settings) {
  return std::make_unique<DeltaNet>(settings);
}

} // namespace shardc::model
