// Word embeddings, plus learned positions if the model has them.
#pragma once

#include "compiler/model/Module.h"

namespace shardc::model {

/// `vocab` rows of `hidden` columns, initialised with standard deviation `initStd`.
struct EmbeddingSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t positions = 0; ///< rows of the learned position table; 0: no table
  double initStd = 0, dropout = 0;
  double scale = 1; ///< factor on word embeddings
};

/// The result is [B,S,hidden]: word rows times `scale`, plus rows of positions, then dropout.
class Embedding : public Module {
public:
  explicit Embedding(const EmbeddingSettings &settings) : s_(settings) {}
  /// Complete name of the word table, which a tied head also reads.
  static constexpr const char *kWords = "embedding.word_embeddings.weight";

  void declare(Params &params) const override;
  /// Embeds the batch's tokens; ignores `x`.
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;
  /// Embeds other tokens at other positions. The caller must set an empty prefix for parameter
  /// names.
  plan::ValueId lookUp(Forward &to, plan::ValueId tokens, plan::ValueId positions) const;
  bool hasPositions() const { return s_.positions > 0; }

private:
  static constexpr const char *kPositions = "embedding.position_embeddings.weight";
  EmbeddingSettings s_;
};

} // namespace shardc::model
