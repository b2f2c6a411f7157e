// The parts that all kinds of attention share: rotary embedding, and attention itself.
#pragma once

#include <optional>

#include "compiler/model/Parts.h"

namespace shardc::model {

/// Frequencies of YaRN (arXiv 2309.00071).
struct YarnSettings {
  double factor = 1;       ///< by which the context is extended
  int64_t positions = 1;   ///< before the extension
  double betaFast = 32;    ///< turns within them from which a frequency stays
  double betaSlow = 1;     ///< turns up to which it shrinks by the whole factor
  bool roundsRange = true; ///< pairs of channels between these are whole numbers
  double magnitude = 1;    ///< factor on cosines and sines
};

struct RopeSettings {
  double base = 10000;
  double scaling = 1;       ///< Llama 3.1's factor; 1: none
  double interpolation = 1; ///< positions are divided by it
  std::optional<YarnSettings> yarn;
  int64_t dim = 0; ///< channels of a head that are rotated
  bool interleaved = false;
};

/// Sets the attributes of a rotation.
void setRotation(plan::Op &op, const RopeSettings &rope);

/// A factor on queries that grows with their positions: 1 + slope·log(1 + floor((s + 1) / step)).
struct PositionScale {
  int64_t step = 1;
  double slope = 0;
};

/// One more key for each query, of value 0.
enum class Sinks : uint8_t {
  None,
  Zero,   ///< its score is 0: Megatron-Core's softmax_type off-by-one
  Learned ///< a parameter is its score for each head: learnable
};

struct ScoreSettings {
  double scale = 1;              ///< of scores, before the softmax
  double softCap = 0;            ///< of scaled scores; 0: none
  bool resetMask = false;        ///< attention ends at the ends of documents
  std::optional<int64_t> window; ///< keys before its own that a query sees; none: all
  std::optional<int64_t> chunk;  ///< positions of which a query sees those of its own; none: all
  double dropout = 0;            ///< of probabilities
  Sinks sinks = Sinks::None;
};

/// Appends the scores of sinks if they are learned. Transformer Engine, by which upstream computes
/// attention, begins with zeros.
void declareSinks(Params &params, int64_t heads, const ScoreSettings &settings);

/// Writes attention of queries [B,S,N,D] to keys and values [B,S,G,...], as rows of heads.
plan::ValueId attend(Forward &to, plan::ValueId q, plan::ValueId k, plan::ValueId v,
                     const ScoreSettings &settings);

} // namespace shardc::model
