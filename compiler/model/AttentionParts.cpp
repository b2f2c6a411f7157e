#include "compiler/model/AttentionParts.h"

#include <algorithm>

#include "compiler/model/Forward.h"

namespace shardc::model {

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

namespace {

constexpr const char *kSinks = "self_attention.core_attention.softmax_offset";

} // namespace

void declareSinks(Params &params, int64_t heads, const ScoreSettings &settings) {
  if (settings.sinks == Sinks::Learned)
    params.push_back({ParamKind::Sink, kSinks, {heads}, plan::InitKind::Zeros, 0, TensorSplit{}});
}

/// Emits attention, followed by an op for sinks if the model has them. Queries have shape [B, S,
/// heads, channels]; the output has [B, S, heads * channels], and the statistics (log-sum-exp) [B,
/// heads, S] in fp32.
ValueId attend(Forward &to, ValueId q, ValueId k, ValueId v, const ScoreSettings &settings) {
  const Batch &batch = to.batch();
  int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  int64_t heads = to.typeOf(q).shape[2], channels = to.typeOf(v).shape[3];
  Op attend = to.op(OpKind::Attention, {q, k, v, batch.docs, batch.samples});
  attend.set(Key::scale, settings.scale).set(Key::causal, int64_t{1});
  attend.set(Key::reset_mask, int64_t{settings.resetMask});
  if (settings.softCap > 0)
    attend.set(Key::soft_cap, settings.softCap);
  if (settings.window)
    attend.set(Key::window, *settings.window);
  if (settings.chunk && *settings.chunk < std::max(s, to.settings().positions))
    attend.set(Key::chunk, *settings.chunk);
  to.setDropout(attend, settings.dropout);
  Type output = to.activations({b, s, heads * channels}),
       statistics = Type::of(DType::F32, {b, heads, s});
  if (settings.sinks == Sinks::None)
    return to.emitMany(std::move(attend), {{"attn", output}, {"attn.lse", statistics}})[0];
  auto keys =
      to.emitMany(std::move(attend), {{"attn.keys", output}, {"attn.keys.lse", statistics}});
  Op sink = to.op(OpKind::AttentionSink, {keys[0], keys[1]});
  if (settings.sinks == Sinks::Learned)
    sink.operands.push_back(to.weight(kSinks));
  return to.emitMany(std::move(sink), {{"attn", output}, {"attn.lse", statistics}})[0];
}

ValueId convolvedHeads(Forward &to, const Linear &in, ValueId x, const std::string &what,
                       int64_t size, bool resetMask, const std::string &filter,
                       const std::string &bias) {
  const int64_t b = to.settings().microBatch, s = to.settings().seqLength;
  ValueId rows = in.apply(to, x, (what + ".in").c_str());
  Op conv = to.op(OpKind::CausalConv, {rows, to.weight(filter), to.batch().docs});
  if (!bias.empty())
    conv.operands.push_back(to.weight(bias));
  conv.set(Key::reset_mask, int64_t{resetMask});
  rows =
      to.emit(std::move(conv), to.name((what + ".conv").c_str()), to.activations({b, s, in.out}));
  return to.reshaped(rows, what.c_str(), {b, s, in.out / size, size});
}

} // namespace shardc::model
