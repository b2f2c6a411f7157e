// The output layer, and the loss of each token.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"
#include "runtime/base/Preference.h"

namespace shardc::model {
namespace {

constexpr const char *kHeadWeight = "output_layer.weight";

/// Product with the vocabulary, soft cap, cross entropy; x is [B,S,hidden].
class Head : public Module {
public:
  explicit Head(const HeadSettings &settings) : s_(settings) {}

  void declare(Params &params) const override {
    if (!s_.tied)
      params.push_back({ParamKind::Head,
                        kHeadWeight,
                        {s_.vocab, s_.hidden},
                        plan::InitKind::Normal,
                        s_.initStd,
                        TensorSplit{}});
  }

  /// Returns the masked token losses, f32[B·S], or the losses of pairs, f32[B]. Stores their number
  /// and `x` in `to`.
  ValueId forward(Forward &to, ValueId x) const override {
    const Batch &batch = to.batch();
    to.hidden = x;
    if (to.settings().hasPairs)
      return pairLosses(to, x);
    to.tokenCount =
        to.emit(to.op(OpKind::TokenCount, {batch.mask}), "count", Type::of(DType::F32, {1}));
    return tokenLosses(to, s_, x, batch.labels, batch.mask, "logits");
  }

private:
  /// Emits the loss of every token, then the loss of pairs. A loss with `countsAll` (ORPO) has no
  /// reference model; its operand `reference` is 1 at every token of a document.
  ValueId pairLosses(Forward &to, ValueId x) const {
    const Batch &batch = to.batch();
    ValueId each = tokenLosses(to, s_, x, batch.labels,
                               s_.pairs.countsAll ? batch.reference : batch.mask, "logits");
    Op pairs = to.op(OpKind::PreferenceLoss, {each, batch.mask, batch.docs});
    if (s_.pairs.hasReference)
      pairs.operands.push_back(batch.reference);
    pairs.set(Key::preference, s_.pairs.kind).set(Key::beta, s_.pairs.beta);
    pairs.set(Key::simpo_gamma, s_.pairs.gamma).set(Key::label_smoothing, s_.pairs.smoothing);
    int64_t sequences = to.settings().microBatch;
    const Type metrics = Type::of(DType::F32, {sequences, kPairMetrics});
    std::vector<ValueId> made =
        to.emitMany(std::move(pairs), {{"pairs", Type::of(DType::F32, {sequences})},
                                       {"weights", to.typeOf(each)},
                                       {"pairs.count", Type::of(DType::F32, {1})},
                                       {"pairs.metrics", metrics}});
    to.tokenCount = made[2];
    if (to.settings().training)
      to.tally("preference_sums", made[3], 0, 1);
    return made[0];
  }

  HeadSettings s_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const HeadSettings &settings) {
  return std::make_unique<Head>(settings);
}

ValueId tokenLosses(Forward &to, const HeadSettings &settings, ValueId x, ValueId labels,
                    ValueId mask, std::string name) {
  int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  x = to.scaled(x, settings.multiplier, (name + ".input").c_str());
  Op product = to.op(OpKind::MatMul, {x, to.weight(settings.tied ? kWordEmbeddings : kHeadWeight)});
  product.set(Key::trans_b, int64_t{1});
  ValueId logits =
      to.emit(std::move(product), std::move(name), to.activations({b, s, settings.vocab}));
  Op entropy = to.op(OpKind::CrossEntropy, {logits, labels, mask});
  entropy.set(Key::valid_cols, settings.validCols);
  if (settings.softCap > 0)
    entropy.set(Key::soft_cap, settings.softCap);
  Type rows = Type::of(DType::F32, {b * s});
  return to.emitMany(std::move(entropy), {{"losses", rows}, {"losses.lse", rows}})[0];
}

} // namespace shardc::model
