#include "compiler/model/Head.h"

#include "compiler/model/Embedding.h"
#include "compiler/model/Forward.h"
#include "runtime/base/Preference.h"

namespace shardc::model {

void Head::declare(Params &params) const {
  if (!s_.tied)
    params.push_back({ParamKind::Head,
                      kWeight,
                      {s_.vocab, s_.hidden},
                      plan::InitKind::Normal,
                      s_.initStd,
                      TensorSplit{}});
}

ValueId Head::forward(Forward &to, ValueId x) const {
  const Batch &batch = to.batch();
  to.hidden = x;
  if (to.settings().hasPairs)
    return pairLosses(to, x);
  to.tokenCount =
      to.emit(to.op(OpKind::TokenCount, {batch.mask}), "count", Type::of(DType::F32, {1}));
  return losses(to, x, batch.labels, batch.mask, "logits");
}

ValueId Head::pairLosses(Forward &to, ValueId x) const {
  const Batch &batch = to.batch();
  ValueId each =
      losses(to, x, batch.labels, s_.pairs.countsAll ? batch.reference : batch.mask, "logits");
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

ValueId Head::losses(Forward &to, ValueId x, ValueId labels, ValueId mask, std::string name) const {
  int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  x = to.scaled(x, s_.multiplier, (name + ".input").c_str());
  Op product = to.op(OpKind::MatMul, {x, to.weight(s_.tied ? Embedding::kWords : kWeight)});
  product.set(Key::trans_b, int64_t{1});
  ValueId logits = to.emit(std::move(product), std::move(name), to.activations({b, s, s_.vocab}));
  Op entropy = to.op(OpKind::CrossEntropy, {logits, labels, mask});
  entropy.set(Key::valid_cols, s_.validCols);
  if (s_.softCap > 0)
    entropy.set(Key::soft_cap, s_.softCap);
  Type rows = Type::of(DType::F32, {b * s});
  return to.emitMany(std::move(entropy), {{"losses", rows}, {"losses.lse", rows}})[0];
}

} // namespace shardc::model
