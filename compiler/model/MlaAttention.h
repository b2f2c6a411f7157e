// Latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values are computed from
// compressed vectors, which have their own norms. Rotary embedding is applied to separate channels,
// which all key heads of a token share.
#pragma once

#include <optional>

#include "compiler/model/AttentionParts.h"

namespace shardc::model {

/// Sizes of one layer: `queryRank` and `keyRank` are the columns of the compressed vectors.
struct MlaSettings : MixerSettings {
  int64_t heads = 1;
  int64_t channels = 1, rotated = 2, values = 1; ///< per head: unrotated, rotated, of values
  std::optional<int64_t> queryRank;              ///< empty: queries are not compressed
  int64_t keyRank = 1;
  std::optional<NormSettings> norm; ///< of the compressed vectors
  RopeSettings rope;
  ScoreSettings scores;
  bool projBias = false;
};

/// x and the result are [B,S,hidden]. The rotated channels of keys are computed from x directly,
/// once for all heads.
class MlaAttention : public Module {
public:
  explicit MlaAttention(const MlaSettings &settings);
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// A product that compresses, a norm, and a product that expands to rows of heads.
  struct Rank {
    Linear down, up;
    std::optional<Norm> norm;
  };
  Rank rank(const char *which, int64_t rank, int64_t beside, int64_t out) const;
  /// The compressed vector after its norm.
  static plan::ValueId normed(Forward &to, const Rank &rank, plan::ValueId compressed);

  MlaSettings s_;
  std::optional<Linear> query_;   ///< without compression of queries
  std::optional<Rank> queryRank_; ///< with compression of queries
  Rank keyRank_;
  Linear proj_;
};

} // namespace shardc::model
