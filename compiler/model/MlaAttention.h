// Latent attention: queries, keys and values are computed from vectors of a lower rank, which have
// norms of their own (DeepSeek-V2, arXiv 2405.04434). Rotary embedding applies to separate
// channels, which all keys of a token share.
#pragma once

#include <optional>

#include "compiler/model/AttentionParts.h"

namespace shardc::model {

struct MlaSettings {
  int64_t hidden = 1, heads = 1;
  int64_t channels = 1, rotated = 2, values = 1; ///< of a head: without positions, with, of values
  std::optional<int64_t> queryRank;              ///< none: queries come from one product
  int64_t keyRank = 1;
  std::optional<NormSettings> norm; ///< of the vectors of lower rank
  RopeSettings rope;
  ScoreSettings scores;
  bool projBias = false;
  double initStd = 0, residualStd = 0;
  double hiddenDropout = 0;
  Adapters adapters = {};
};

class MlaAttention : public Module {
public:
  explicit MlaAttention(const MlaSettings &settings);
  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// A product into rows of heads, behind one into a vector of lower rank.
  struct Rank {
    Linear down, up;
    std::optional<Norm> norm;
  };
  Rank rank(const char *which, int64_t rank, int64_t beside, int64_t out) const;
  /// The vector of lower rank behind its norm.
  static plan::ValueId normed(Forward &to, const Rank &rank, plan::ValueId compressed);

  MlaSettings s_;
  std::optional<Linear> query_;   ///< without compression
  std::optional<Rank> queryRank_; ///< with it
  Rank keyRank_;
  Linear proj_;
};

} // namespace shardc::model
