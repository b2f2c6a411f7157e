// Latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values are computed from
// compressed vectors, which have their own norms. Rotary embedding is applied to separate channels,
// which all key heads of a token share.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {
namespace {

/// x and the result are [B,S,hidden]. The rotated channels of keys are computed from x directly,
/// once for all heads.
class MlaAttention : public Module {
public:
  explicit MlaAttention(const MlaSettings &settings) : s_(settings) {
    const std::string stem = "self_attention.";
    int64_t queries = times(s_.heads, plus(s_.channels, s_.rotated));
    if (s_.queryRank)
      queryRank_ = rank("q", *s_.queryRank, 0, queries);
    else
      query_ = {ParamKind::Latent, stem + "linear_q_proj", queries, s_.hidden, false, s_.initStd};
    keyRank_ = rank("kv", s_.keyRank, s_.rotated, times(s_.heads, plus(s_.channels, s_.values)));
    proj_ = s_.output(stem + "linear_proj", times(s_.heads, s_.values), s_.projBias);
    if (query_)
      query_->adapter = s_.adapters.find(query_->stem, query_->in);
    s_.rope.dim = s_.rotated;
    s_.rope.interleaved =
        true; // Megatron-Core permutes the channels of q and k alike, so products are the same
  }

  void declare(Params &params) const override {
    auto declareRank = [&](const Rank &rank) {
      rank.down.declare(params);
      if (rank.norm)
        rank.norm->declare(params);
      rank.up.declare(params);
    };
    if (query_)
      query_->declare(params);
    else
      declareRank(*queryRank_);
    declareRank(keyRank_);
    declareSinks(params, s_.heads, s_.scores);
    proj_.declare(params);
  }

  ValueId forward(Forward &to, ValueId x) const override {
    int64_t b = to.settings().microBatch, s = to.settings().seqLength;
    ValueId queries = plan::kNone;
    if (query_)
      queries = query_->apply(to, x, "q.rows");
    else
      queries = queryRank_->up.apply(
          to, normed(to, *queryRank_, queryRank_->down.apply(to, x, "q.rank")), "q.rows");
    ValueId down = keyRank_.down.apply(to, x, "kv.down");
    auto parts = to.emitMany(to.op(OpKind::SplitColumns, {down}),
                             {{"kv.rank", to.activations({b, s, s_.keyRank})},
                              {"k.rot", to.activations({b, s, s_.rotated})}});
    ValueId rows = keyRank_.up.apply(to, normed(to, keyRank_, parts[0]), "kv.rows");
    Op heads = to.op(OpKind::LatentHeads, {queries, rows, parts[1]});
    setRotation(heads, s_.rope);
    Type key = to.activations({b, s, s_.heads, s_.channels + s_.rotated});
    auto v =
        to.emitMany(std::move(heads),
                    {{"q", key}, {"k", key}, {"v", to.activations({b, s, s_.heads, s_.values})}});
    ValueId o = attend(to, v[0], v[1], v[2], s_.scores);
    return to.dropout(proj_.apply(to, o, "proj"), s_.hiddenDropout, "proj.drop");
  }

private:
  /// A product that compresses, a norm, and a product that expands to rows of heads.
  struct Rank {
    Linear down, up;
    std::optional<Norm> norm;
  };

  Rank rank(const char *which, int64_t rank, int64_t beside, int64_t out) const {
    const std::string stem = std::string("self_attention.linear_") + which, up = stem + "_up_proj";
    Rank result;
    result.down = {ParamKind::Latent, stem + "_down_proj", plus(rank, beside), s_.hidden, false,
                   s_.initStd,        Linear::All};
    result.up = {ParamKind::Latent, up, out, rank, false, s_.initStd};
    for (Linear *linear : {&result.down, &result.up})
      linear->adapter = s_.adapters.find(linear->stem, linear->in);
    if (s_.norm)
      result.norm.emplace(*s_.norm, rank, up + ".layer_norm_", std::string(which) + ".normed");
    return result;
  }

  /// The compressed vector after its norm.
  static ValueId normed(Forward &to, const Rank &rank, ValueId compressed) {
    return rank.norm ? rank.norm->forward(to, compressed) : compressed;
  }

  MlaSettings s_;
  std::optional<Linear> query_;   ///< without compression of queries
  std::optional<Rank> queryRank_; ///< with compression of queries
  Rank keyRank_;
  Linear proj_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const MlaSettings &settings) {
  return std::make_unique<MlaAttention>(settings);
}

} // namespace shardc::model
