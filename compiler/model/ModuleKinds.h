// The modules that models consist of, one for each kind: its settings, and the function that makes
// it. The source of each, such as GqaAttention.cpp, describes it.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "compiler/model/AttentionParts.h"
#include "runtime/base/Router.h"

namespace shardc::model {

// ---- embedding and head ----

/// `vocab` rows of `hidden` columns, initialised with standard deviation `initStd`.
struct EmbeddingSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t positions = 0; ///< rows of the learned position table; 0: no table
  double initStd = 0, dropout = 0;
  double scale = 1; ///< factor on word embeddings
};
std::unique_ptr<const Module> makeModule(const EmbeddingSettings &settings);

/// Complete name of the word table, which a tied head also reads.
inline constexpr const char *kWordEmbeddings = "embedding.word_embeddings.weight";
/// Embeds other tokens than the batch's, at other positions. The caller must set an empty prefix
/// for parameter names.
plan::ValueId embed(Forward &to, const EmbeddingSettings &settings, plan::ValueId tokens,
                    plan::ValueId positions);

/// Settings of a preference loss; see op preference_loss.
struct PairSettings {
  int64_t kind = 0;
  double beta = 0, gamma = 0, smoothing = 0;
  bool countsAll = false;   ///< whether the loss of chosen answers also counts their prompts
  bool hasReference = true; ///< whether answers are compared with a reference model's
};

/// The weight has `vocab` rows, including padding; columns from `validCols` on are left out of the
/// softmax.
struct HeadSettings {
  int64_t vocab = 1, hidden = 1;
  int64_t validCols = 1; ///< number of columns that the softmax includes
  bool tied = false;     ///< whether the weight is that of the embedding
  double initStd = 0;
  double softCap = 0;    ///< of logits; 0: no cap
  double multiplier = 1; ///< on logits, before the cap
  PairSettings pairs;    ///< for bodies with pairs
};
std::unique_ptr<const Module> makeModule(const HeadSettings &settings);

/// The masked losses of these labels, f32[B·S]. `logits`: complete name of the logits' value. The
/// caller must set an empty prefix for parameter names.
plan::ValueId tokenLosses(Forward &to, const HeadSettings &settings, plan::ValueId x,
                          plan::ValueId labels, plan::ValueId mask, std::string logits);

// ---- modules that mix positions; x and the result are [B,S,hidden] ----

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
std::unique_ptr<const Module> makeModule(const GqaSettings &settings);

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
std::unique_ptr<const Module> makeModule(const MlaSettings &settings);

/// `taps`: how many positions the convolution adds, its own and those before it.
struct ShortConvSettings : MixerSettings {
  int64_t taps = 3;
  bool resetMask = false; ///< the convolution does not reach into the document before
};
std::unique_ptr<const Module> makeModule(const ShortConvSettings &settings);

/// A key head serves valueHeads / keyHeads value heads. `taps`: how many positions convolutions
/// add. The state of a head is [keySize, valueSize].
struct DeltaNetSettings : MixerSettings {
  int64_t taps = 4;
  int64_t keyHeads = 1, valueHeads = 1, keySize = 1, valueSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-6;  ///< of the norm of each head's result
};
std::unique_ptr<const Module> makeModule(const DeltaNetSettings &settings);

/// A group has a query and a key head, which serve heads / groups heads. The state of a head is
/// [stateSize, headSize].
struct MambaSettings : MixerSettings {
  int64_t groups = 1, heads = 1, stateSize = 1, headSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-5;
};
std::unique_ptr<const Module> makeModule(const MambaSettings &settings);

// ---- feed-forward layers ----

/// Sizes and numbers of one feed-forward layer: `width` columns between its products, of gate and
/// up each if gated.
struct MlpSettings {
  int64_t hidden = 1, width = 1;
  bool gated = false, hasBias = false;
  plan::OpKind activation = plan::OpKind::Gelu;
  bool tanhApprox = false; ///< for GELU
  double clamp = 0;        ///< limit of gate and up before they are multiplied; 0: none
  double linearOffset = 0; ///< added to up
  double initStd = 0, residualStd = 0, hiddenDropout = 0;
  Adapters adapters = {};
};
/// `stem`: prefix of the parameters' names. `what`: prefix of the values' names. `kind`: of the
/// weights.
std::unique_ptr<const Module> makeModule(const MlpSettings &settings,
                                         const std::string &stem = "mlp.", std::string what = "",
                                         ParamKind kind = ParamKind::FeedForward);
/// Sets the attributes of an activation.
void setActivation(plan::Op &op, const MlpSettings &settings);

/// How experts are chosen and weighted, and what balances them.
struct RouterSettings {
  int64_t topk = 1;      ///< number of experts per token
  int64_t groups = 0;    ///< number of equal groups of experts; 0: no groups
  int64_t groupTopk = 0; ///< number of groups from which a token may choose experts
  RouterScore score = kRouterSoftmax;
  bool preSoftmax = false; ///< the softmax is over all experts, rather than the chosen ones
  double scale = 1;        ///< factor on the weights of experts
  double jitter = 0;       ///< maximum deviation from 1 of the random factors on its input
  bool isFp32 = false;     ///< whether its product writes fp32, whatever the activations' type
  /// Weights of the balancing losses, by enum RouterLoss; 0: no loss.
  std::array<double, kRouterLosses> losses{};
  /// The share of the sum over ranks, microbatches and layers that a run reports as the loss.
  double reportedShare = 1;
  int64_t dataRanks = 1;     ///< number of ranks with other samples
  double capacityFactor = 0; ///< limit on an expert's rows, relative to an even share; 0: none
  bool dropsByPosition = false;
  bool isBySinkhorn = false; ///< in training, Sinkhorn's algorithm chooses experts evenly
};

/// One layer of experts: their number over all ranks, the router, and the sizes of each expert.
struct MoeSettings {
  int64_t experts = 1;
  RouterSettings router;
  MlpSettings expert;                ///< settings of each expert
  std::optional<MlpSettings> shared; ///< the shared expert
  bool hasSharedGate = false; ///< whether the sigmoid of a logit scales the shared expert's result
  bool weighsInput = false;   ///< weights scale the experts' input rows, not their results
};
std::unique_ptr<const Module> makeModule(const MoeSettings &settings);

// ---- multi-token prediction ----

/// One block; the embedding and the head are the model's own, so their parameters are not declared
/// again.
struct MtpSettings {
  int64_t hidden = 1;
  NormSettings norm;
  double initStd = 0;
  EmbeddingSettings embedding;
  HeadSettings head;
  bool isPerToken = false; ///< gradients are divided by the step's number of tokens at its end
  /// The share of a microbatch's mean loss that a rank adds to the reported loss of a step.
  double reportedShare = 1;
};
/// Blocks are applied in order, after the head. `layer`: the modules of the block's layer.
std::unique_ptr<const Module> makeModule(const MtpSettings &settings, Modules layer);

} // namespace shardc::model
