// Parts of all kinds of attention: rotary embedding, and the attention op.
#pragma once

#include <optional>

#include "compiler/model/Parts.h"

namespace shardc::model {

/// Frequencies of YaRN (arXiv 2309.00071).
struct YarnSettings {
  double factor = 1;     ///< ratio of the extended context to the original one
  int64_t positions = 1; ///< length of the original context
  /// A frequency with at least this many rotations in `positions` does not change.
  double betaFast = 32;
  double betaSlow = 1; ///< a frequency with at most this many rotations is divided by `factor`
  /// Rounds the channels with betaFast and betaSlow rotations to whole numbers.
  bool roundsRange = true;
  double magnitude = 1; ///< factor on cosines and sines
};

/// Rotary position embedding (arXiv 2104.09864): which channels of a head are rotated, and by which
/// angles. `interleaved`: channels 2i and 2i + 1 form a pair, otherwise i and i + dim / 2.
struct RopeSettings {
  double base = 10000;
  double scaling = 1;       ///< Llama 3.1's factor; 1: none
  double interpolation = 1; ///< positions are divided by it
  std::optional<YarnSettings> yarn;
  int64_t dim = 0; ///< number of channels of a head that are rotated
  bool interleaved = false;
};

/// Sets the attributes of a rotation.
void setRotation(plan::Op &op, const RopeSettings &rope);

/// A factor on queries that grows with their positions: 1 + slope·log(1 + floor((s + 1) / step)).
struct PositionScale {
  int64_t step = 1;
  double slope = 0;
};

/// An additional key for each query, whose value is 0.
enum class Sinks : uint8_t {
  None,
  Zero,   ///< score 0: Megatron-Core's softmax_type off-by-one
  Learned ///< a learned score for each head: softmax_type learnable
};

/// How attention computes probabilities from queries and keys, in the order scale, soft cap, masks,
/// softmax, dropout.
struct ScoreSettings {
  double scale = 1;              ///< factor on scores before the softmax
  double softCap = 0;            ///< cap of scaled scores; 0: none
  bool resetMask = false;        ///< whether attention is limited to documents
  std::optional<int64_t> window; ///< number of earlier keys that a query attends to; empty: all
  std::optional<int64_t> chunk;  ///< positions of a chunk, which limits attention; empty: none
  double dropout = 0;            ///< of probabilities
  Sinks sinks = Sinks::None;
};

/// Appends the scores of sinks if they are learned. They start with zeros, as in Transformer
/// Engine, which upstream uses for attention.
void declareSinks(Params &params, int64_t heads, const ScoreSettings &settings);

/// Emits attention of queries [B,S,N,D] to keys [B,S,G,D] and values [B,S,G,E]. The result has
/// shape [B,S,N·E].
plan::ValueId attend(Forward &to, plan::ValueId q, plan::ValueId k, plan::ValueId v,
                     const ScoreSettings &settings);

/// Heads [B,S,columns / size,size] of a product of x, which is convolved along the sequence with
/// parameter `filter` and, unless it is empty, parameter `bias`.
plan::ValueId convolvedHeads(Forward &to, const Linear &in, plan::ValueId x,
                             const std::string &what, int64_t size, bool resetMask,
                             const std::string &filter, const std::string &bias = "");

} // namespace shardc::model
