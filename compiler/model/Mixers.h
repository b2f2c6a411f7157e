// The modules that mix positions, one for each kind. Their x and result are [B,S,hidden]. The
// source of each, such as GqaAttention.cpp, describes it.
#pragma once

#include <memory>
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
std::unique_ptr<const Module> makeMixer(const GqaSettings &settings);

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
std::unique_ptr<const Module> makeMixer(const MlaSettings &settings);

/// `taps`: how many positions the convolution adds, its own and those before it.
struct ShortConvSettings : MixerSettings {
  int64_t taps = 3;
  bool resetMask = false; ///< the convolution does not reach into the document before
};
std::unique_ptr<const Module> makeMixer(const ShortConvSettings &settings);

/// A key head serves valueHeads / keyHeads value heads. `taps`: how many positions convolutions
/// add. The state of a head is [keySize, valueSize].
struct DeltaNetSettings : MixerSettings {
  int64_t taps = 4;
  int64_t keyHeads = 1, valueHeads = 1, keySize = 1, valueSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-6;  ///< of the norm of each head's result
};
std::unique_ptr<const Module> makeMixer(const DeltaNetSettings &settings);

/// A group has a query and a key head, which serve heads / groups heads. The state of a head is
/// [stateSize, headSize].
struct MambaSettings : MixerSettings {
  int64_t groups = 1, heads = 1, stateSize = 1, headSize = 1;
  bool resetMask = false; ///< states and convolutions do not reach into the document before
  double normEps = 1e-5;
};
std::unique_ptr<const Module> makeMixer(const MambaSettings &settings);

} // namespace shardc::model
