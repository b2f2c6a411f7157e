// Attention in which groups of query heads share a key and value head. With one group for each
// head, this is multi-head attention.
#include <algorithm>

#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"
#include "runtime/base/Status.h"

namespace shardc::model {
namespace {

/// x and the result are [B,S,hidden].
class GqaAttention : public Module {
public:
  /// One product computes queries, keys and values, interleaved by group as Megatron stores them.
  /// Sizes are multiplied with saturation, since recipes may have any numbers.
  explicit GqaAttention(const GqaSettings &settings) : s_(settings) {
    int64_t queries = times(s_.heads, s_.headSize), keys = times(s_.groups, s_.headSize);
    int64_t units = s_.hasGate ? 2 : 1, rows = plus(times(units, queries), times(2, keys));
    qkv_ = {ParamKind::Qkv, "self_attention.linear_qkv", rows, s_.hidden, s_.qkvBias, s_.initStd};
    proj_ = s_.output("self_attention.linear_proj", queries, s_.projBias);
    constexpr int64_t kParts = 3; // queries, keys, values
    qkv_.adapter = s_.adapters.find(
        qkv_.stem, qkv_.in,
        {s_.groups, units * s_.heads / std::max<int64_t>(s_.groups, 1) + 2, kParts});
    if (s_.qkNorm) {
      bool isOfAll = s_.isNormOfAllHeads;
      bool isFinal = (!s_.rope || s_.isNormOfRotated) && !isOfAll;
      auto split = [&](int64_t heads) { // sharded like the heads
        return isOfAll ? std::optional(TensorSplit{0, 1, heads}) : std::nullopt;
      };
      queryNorm_.emplace(*s_.qkNorm, isOfAll ? queries : s_.headSize, "self_attention.q_layernorm.",
                         isFinal && !s_.queryScale ? "q" : "q.normed", split(s_.heads),
                         ParamKind::QkNorm);
      keyNorm_.emplace(*s_.qkNorm, isOfAll ? keys : s_.headSize, "self_attention.k_layernorm.",
                       isFinal ? "k" : "k.normed", split(s_.groups), ParamKind::QkNorm);
    }
  }

  void declare(Params &params) const override {
    qkv_.declare(params);
    if (s_.qkNorm) {
      queryNorm_->declare(params);
      keyNorm_->declare(params);
    }
    declareSinks(params, s_.heads, s_.scores);
    proj_.declare(params);
  }

  /// Product, split, norms, rotation, scaling, attention, output product. Only the last step that
  /// changes q and k names its result `q` or `k`.
  ValueId forward(Forward &to, ValueId x) const override {
    int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    int64_t heads = s_.hasGate ? 2 * s_.heads : s_.heads;
    Type query = to.activations({b, s, heads, s_.headSize}),
         key = to.activations({b, s, s_.groups, s_.headSize});
    ValueId qkv = qkv_.apply(to, x, "qkv");
    Op split = to.op(OpKind::SplitQkv, {qkv});
    split.set(Key::num_heads, heads).set(Key::num_groups, s_.groups);
    split.set(Key::head_dim, s_.headSize);
    bool isFinal =
        !s_.qkNorm && !s_.rope && !s_.l2NormEps; // nothing changes q and k after the split
    const char *first = isFinal && !s_.queryScale ? "q" : "q.plain";
    auto v = to.emitMany(
        std::move(split),
        {{s_.hasGate ? "q.gate" : first, query}, {isFinal ? "k" : "k.plain", key}, {"v", key}});
    const ValueId gate = s_.hasGate ? splitGate(to, v[0], first) : plan::kNone;
    auto normalize = [&] {
      v[0] = normed(to, *queryNorm_, v[0], "q");
      v[1] = normed(to, *keyNorm_, v[1], "k");
    };
    if (s_.qkNorm && !s_.isNormOfRotated)
      normalize();
    if (s_.rope) {
      bool isNormed = s_.l2NormEps || (s_.qkNorm && s_.isNormOfRotated);
      v[0] = rotate(to, v[0], isNormed || s_.queryScale ? "q.rotated" : "q");
      v[1] = rotate(to, v[1], isNormed ? "k.rotated" : "k");
    }
    if (s_.qkNorm && s_.isNormOfRotated)
      normalize();
    if (s_.l2NormEps) {
      v[0] = normedWithoutWeight(to, v[0], s_.queryScale ? "q.normed" : "q");
      v[1] = normedWithoutWeight(to, v[1], "k");
    }
    if (s_.queryScale)
      v[0] = scaled(to, v[0], "q");
    ValueId o = attend(to, v[0], v[1], v[2], s_.scores);
    if (s_.hasGate)
      o = to.emit(to.op(OpKind::Gate, {o, gate}), to.name("gated"), to.typeOf(o));
    return to.dropout(proj_.apply(to, o, "proj"), s_.hiddenDropout, "proj.drop");
  }

private:
  /// Splits the query heads of each group from the gates behind them. `q` becomes the former, with
  /// name `what`. Returns the gates.
  ValueId splitGate(Forward &to, ValueId &q, const char *what) const {
    int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    int64_t columns = s_.heads * s_.headSize, each = columns / s_.groups;
    ValueId rows = to.reshaped(q, "q.gate.rows", {b, s, s_.groups, 2 * each});
    Type half = to.activations({b, s, s_.groups, each});
    auto both =
        to.emitMany(to.op(OpKind::SplitColumns, {rows}), {{"q.rows", half}, {"gate.rows", half}});
    q = to.reshaped(both[0], what, {b, s, s_.heads, s_.headSize});
    return to.reshaped(both[1], "gate", {b, s, columns});
  }

  ValueId normed(Forward &to, const Norm &norm, ValueId x, const char *what) const {
    if (!s_.isNormOfAllHeads)
      return norm.forward(to, x);
    const Type heads = to.typeOf(x);
    const std::string name = what;
    ValueId rows = to.reshaped(x, (name + ".flat").c_str(),
                               {heads.shape[0], heads.shape[1], heads.shape[2] * heads.shape[3]});
    return to.reshaped(
        norm.forward(to, rows),
        (s_.rope || (s_.queryScale && name == "q") ? name + ".unrotated" : name).c_str(),
        {heads.shape[0], heads.shape[1], heads.shape[2], heads.shape[3]});
  }

  /// x with rotary embedding, which the settings must have.
  ValueId rotate(Forward &to, ValueId x, const char *what) const {
    Op rope = to.op(OpKind::Rope, {x});
    setRotation(rope, *s_.rope);
    return to.emit(std::move(rope), to.name(what), to.typeOf(x));
  }

  ValueId normedWithoutWeight(Forward &to, ValueId x, const char *what) const {
    const Type type = to.typeOf(x);
    Op norm = to.op(OpKind::L2Norm, {x});
    norm.set(Key::eps, *s_.l2NormEps);
    const Type rows = Type::of(DType::F32, {type.numel() / s_.headSize});
    const std::string rstd = std::string(what) + ".rstd";
    return to.emitMany(std::move(norm), {{what, type}, {rstd.c_str(), rows}})[0];
  }

  /// Queries times their position scale, which the settings must have.
  ValueId scaled(Forward &to, ValueId x, const char *what) const {
    Op scale = to.op(OpKind::ScalePositions, {x});
    scale.set(Key::position_step, s_.queryScale->step);
    scale.set(Key::position_slope, s_.queryScale->slope);
    return to.emit(std::move(scale), to.name(what), to.typeOf(x));
  }

  GqaSettings s_;
  Linear qkv_, proj_;
  std::optional<Norm> queryNorm_, keyNorm_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const GqaSettings &settings) {
  return std::make_unique<GqaAttention>(settings);
}

} // namespace shardc::model
