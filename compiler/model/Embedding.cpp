// Word embeddings, plus learned positions if the model has them.
#include "compiler/model/Forward.h"
#include "compiler/model/ModuleKinds.h"

namespace shardc::model {
namespace {

using plan::InitKind;

constexpr const char *kPositionEmbeddings = "embedding.position_embeddings.weight";

/// The result is [B,S,hidden]: word rows times `scale`, plus rows of positions, then dropout.
class Embedding : public Module {
public:
  explicit Embedding(const EmbeddingSettings &settings) : s_(settings) {}

  void declare(Params &params) const override {
    params.push_back({ParamKind::Embedding,
                      kWordEmbeddings,
                      {s_.vocab, s_.hidden},
                      InitKind::Normal,
                      s_.initStd,
                      TensorSplit{}});
    if (s_.positions > 0)
      params.push_back({ParamKind::Positions,
                        kPositionEmbeddings,
                        {s_.positions, s_.hidden},
                        InitKind::Normal,
                        s_.initStd});
  }

  /// Embeds the batch's tokens; ignores `x`.
  ValueId forward(Forward &to, ValueId) const override {
    return embed(to, s_, to.batch().tokens, to.batch().positions);
  }

private:
  EmbeddingSettings s_;
};

} // namespace

std::unique_ptr<const Module> makeModule(const EmbeddingSettings &settings) {
  return std::make_unique<Embedding>(settings);
}

ValueId embed(Forward &to, const EmbeddingSettings &settings, ValueId tokens, ValueId positions) {
  Type type = to.activations({to.settings().microBatch, to.settings().seqLength, settings.hidden});
  ValueId x = to.emit(to.op(OpKind::Embedding, {tokens, to.weight(kWordEmbeddings)}),
                      to.name("embed"), type);
  x = to.scaled(x, settings.scale, "embed.scaled");
  if (settings.positions > 0) {
    ValueId position =
        to.emit(to.op(OpKind::Embedding, {positions, to.weight(kPositionEmbeddings)}),
                to.name("embed.position"), type);
    x = to.emit(to.op(OpKind::Add, {x, position}), to.name("embed.sum"), type);
  }
  if (type.dtype != to.settings().residual) { // after the sum, as upstream
    type.dtype = to.settings().residual;
    x = to.emit(to.op(OpKind::Cast, {x}), to.name("embed.residual"), type);
  }
  return to.dropout(x, settings.dropout, "embed.drop");
}

} // namespace shardc::model
