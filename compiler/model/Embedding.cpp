#include "compiler/model/Embedding.h"

#include "compiler/model/Forward.h"

namespace shardc::model {

using plan::InitKind;

void Embedding::declare(Params &params) const {
  params.push_back({ParamKind::Embedding,
                    kWords,
                    {s_.vocab, s_.hidden},
                    InitKind::Normal,
                    s_.initStd,
                    TensorSplit{}});
  if (s_.positions > 0)
    params.push_back({ParamKind::Positions,
                      kPositions,
                      {s_.positions, s_.hidden},
                      InitKind::Normal,
                      s_.initStd});
}

ValueId Embedding::forward(Forward &to, ValueId) const {
  return lookUp(to, to.batch().tokens, to.batch().positions);
}

ValueId Embedding::lookUp(Forward &to, ValueId tokens, ValueId positions) const {
  plan::Type type = to.activations({to.settings().microBatch, to.settings().seqLength, s_.hidden});
  ValueId x =
      to.emit(to.op(OpKind::Embedding, {tokens, to.weight(kWords)}), to.name("embed"), type);
  x = to.scaled(x, s_.scale, "embed.scaled");
  if (s_.positions > 0) {
    ValueId position = to.emit(to.op(OpKind::Embedding, {positions, to.weight(kPositions)}),
                               to.name("embed.position"), type);
    x = to.emit(to.op(OpKind::Add, {x, position}), to.name("embed.sum"), type);
  }
  if (type.dtype != to.settings().residual) { // after the sum, as upstream
    type.dtype = to.settings().residual;
    x = to.emit(to.op(OpKind::Cast, {x}), to.name("embed.residual"), type);
  }
  return to.dropout(x, s_.dropout, "embed.drop");
}

} // namespace shardc::model
