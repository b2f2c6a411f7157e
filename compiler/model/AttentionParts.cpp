#include "compiler/model/AttentionParts.h"

#include "compiler/model/Forward.h"

namespace shardc::model {

using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

void setRotation(Op &op, const RopeSettings &rope) {
  op.set(Key::rotary_base, rope.base).set(Key::rotary_scaling, rope.scaling);
  op.set(Key::rotary_interpolation, rope.interpolation);
  op.set(Key::rotary_dim, rope.dim).set(Key::rotary_interleaved, int64_t{rope.interleaved});
  if (!rope.yarn || rope.yarn->factor == 1)
    return;
  op.set(Key::rotary_magnitude, rope.yarn->magnitude).set(Key::yarn_factor, rope.yarn->factor);
  op.set(Key::yarn_positions, rope.yarn->positions);
  op.set(Key::yarn_beta_fast, rope.yarn->betaFast).set(Key::yarn_beta_slow, rope.yarn->betaSlow);
  op.set(Key::yarn_round, int64_t{rope.yarn->roundsRange});
}

ValueId attend(Forward &to, ValueId q, ValueId k, ValueId v, const ScoreSettings &settings) {
  const Batch &batch = to.batch();
  int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  int64_t heads = to.typeOf(q).shape[2], channels = to.typeOf(v).shape[3];
  Op attend = to.op(OpKind::Attention, {q, k, v, batch.docs, batch.samples});
  attend.set(Key::scale, settings.scale).set(Key::causal, int64_t{1});
  attend.set(Key::reset_mask, int64_t{settings.resetMask});
  if (settings.window)
    attend.set(Key::window, *settings.window);
  to.setDropout(attend, settings.dropout);
  return to.emitMany(std::move(attend), {{"attn", to.activations({b, s, heads * channels})},
                                         {"attn.lse", Type::of(DType::F32, {b, heads, s})}})[0];
}

} // namespace shardc::model
