// Attention in which groups of query heads share a key and value head. With one group for each
// head, this is multi-head attention.
#pragma once

#include <optional>

#include "compiler/model/AttentionParts.h"

namespace shardc::model {

/// `heads` query heads of `headSize` channels; each of the `groups` key and value heads serves
/// heads / groups of them.
struct GqaSettings : MixerSettings {
  int64_t heads = 1, groups = 1, headSize = 1;
  bool qkvBias = false, projBias = false;
  std::optional<RopeSettings> rope;
  ScoreSettings scores;
  std::optional<NormSettings> qkNorm; ///< of queries and keys
  bool isNormOfAllHeads = false;      ///< the norm is over all heads together; else over each head
  bool isNormOfRotated = false;       ///< whether the norm, over each head, follows the rotation
  std::optional<double> l2NormEps;    ///< for norms without weights, after rotation; empty: none
  std::optional<PositionScale> queryScale;
  bool hasGate = false; ///< a sigmoid gate for each channel of the output, behind a group's queries
};

/// x and the result are [B,S,hidden].
class GqaAttention : public Module {
public:
  explicit GqaAttention(const GqaSettings &settings);

  void declare(Params &params) const override;
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;

private:
  /// Splits the query heads of each group from the gates behind them. `q` becomes the former, with
  /// name `what`. Returns the gates.
  plan::ValueId splitGate(Forward &to, plan::ValueId &q, const char *what) const;
  plan::ValueId normed(Forward &to, const Norm &norm, plan::ValueId x, const char *what) const;
  /// x with rotary embedding, which the settings must have.
  plan::ValueId rotate(Forward &to, plan::ValueId x, const char *what) const;
  plan::ValueId normedWithoutWeight(Forward &to, plan::ValueId x, const char *what) const;
  /// Queries times their position scale, which the settings must have.
  plan::ValueId scaled(Forward &to, plan::ValueId x, const char *what) const;

  GqaSettings s_;
  Linear qkv_, proj_;
  std::optional<Norm> queryNorm_, keyNorm_;
};

} // namespace shardc::model
