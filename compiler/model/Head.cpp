#include "compiler/model/Head.h"

#include "compiler/model/Embedding.h"
#include "compiler/model/Forward.h"

namespace shardc::model {

using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

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
  to.tokenCount =
      to.emit(to.op(OpKind::TokenCount, {batch.mask}), "count", Type::of(DType::F32, {1}));
  to.hidden = x;
  return losses(to, x, batch.labels, batch.mask, "logits");
}

ValueId Head::losses(Forward &to, ValueId x, ValueId labels, ValueId mask, std::string name) const {
  int64_t b = to.settings().microBatch, s = to.settings().seqLength;
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
