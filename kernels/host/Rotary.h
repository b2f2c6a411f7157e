// The rotary embedding: by how much each pair of channels turns from one position to the next, and
// the turns. Pair i of a rotation of D channels has the frequency base^(-2i/D), and the angle of
// position s is s / interpolation times it, all in fp32 like PyTorch. A scaling other than 1 lowers
// the frequencies of long waves as Llama 3.1 does; a YaRN factor other than 1 those of few turns
// within the positions that a model was trained with (arXiv 2309.00071, section 3.2). Cosines and
// sines are multiplied by the magnitude. Halves (i, i + D/2) are pairs or, if interleaved,
// neighbours (2i, 2i + 1).
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// The parameters from which a call's frequencies and angles follow, besides pair and position.
/// CUDA kernels compute with the same numbers, operation by operation.
struct Rotary {
  int64_t pairs = 0; ///< 0: nothing is rotated
  float base = 1;
  float scaling = 1;                  ///< Llama 3.1's factor; 1: none
  float yarnFactor = 1;               ///< 1: none
  float rampFirst = 0, rampWidth = 1; ///< pairs between which YaRN's factor takes effect
  float perPosition = 1;
  float magnitude = 1;
  bool interleaved = false;

  explicit Rotary(const Attrs &attrs);
  float frequency(int64_t pair) const;
};

/// Null, or the reason why attributes of the rotation are invalid for a head of so many channels.
const char *checkRotary(const Attrs &attrs, int64_t channels);

/// Cosines and sines of a call's positions, in its workspace.
class Angles {
public:
  /// Number of cosines, equal to that of sines, for heads [B, S, ...] with positions i32[B, S], or
  /// without positions for 0 to S - 1.
  static int64_t room(const Attrs &attrs, const Tensor &heads, const Tensor *positions) {
    return rowsOf(heads, positions) * (attrs.rotary_dim / 2);
  }

  Angles() = default; ///< turns nothing
  /// The angles of such heads; `isBackwards` negates them, for gradients.
  Angles(const Attrs &attrs, const Tensor &heads, const Tensor *positions, bool isBackwards,
         float *cosines, float *sines);

  /// y = the n channels of x, the leading ones rotated as in this row; rows behind the last one
  /// begin again.
  void turn(int64_t row, const float *x, int64_t n, float *y) const;

private:
  static int64_t rowsOf(const Tensor &heads, const Tensor *positions) {
    return heads.shape[1] * (positions != nullptr ? heads.shape[0] : 1);
  }

  const float *cosines_ = nullptr, *sines_ = nullptr;
  int64_t pairs_ = 0, rows_ = 1;
  bool isInterleaved_ = false;
};

} // namespace shardc::kernels::host
