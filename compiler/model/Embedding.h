// Word embeddings, with learned positions if the model has them.
#pragma once

#include "compiler/model/Module.h"

namespace shardc::model {

struct EmbeddingSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t positions = 0; ///< rows of the learned table of positions; 0: none
  double initStd = 0, dropout = 0;
  double scale = 1; ///< factor on rows of words
};

class Embedding : public Module {
public:
  explicit Embedding(const EmbeddingSettings &settings) : s_(settings) {}
  /// Complete name of the table of words, which a tied head reads too.
  static constexpr const char *kWords = "embedding.word_embeddings.weight";

  void declare(Params &params) const override;
  /// Takes the batch's tokens, not the operand.
  plan::ValueId forward(Forward &to, plan::ValueId x) const override;
  /// The embedding of other tokens at other positions. Names of parameters have no prefix.
  plan::ValueId lookUp(Forward &to, plan::ValueId tokens, plan::ValueId positions) const;
  bool hasPositions() const { return s_.positions > 0; }

private:
  static constexpr const char *kPositions = "embedding.position_embeddings.weight";
  EmbeddingSettings s_;
};

} // namespace shardc::model
