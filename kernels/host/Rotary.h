// Rotary position embedding: frequencies, angles and rotations. Pair i of a rotation of D channels
// has the frequency base^(-2i/D); its angle at position s is frequency·s / interpolation, all in
// fp32 like PyTorch. A scaling other than 1 lowers the frequencies of long waves, as in Llama 3.1.
// A YaRN factor other than 1 lowers the frequencies with few rotations within the positions of the
// model's training (arXiv 2309.00071, section 3.2). Cosines and sines are multiplied by the
// magnitude. Pairs are (i, i + D/2) or, if interleaved, (2i, 2i + 1).
#pragma once

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::host {

/// The parameters of a call's frequencies and angles. CUDA kernels compute with the same numbers
/// and the same sequence of operations.
struct Rotary {
  int64_t pairs = 0; ///< 0: nothing is rotated
  float base = 1;
  float scaling = 1;                  ///< Llama 3.1's factor; 1: no scaling
  float yarnFactor = 1;               ///< 1: no YaRN
  float rampFirst = 0, rampWidth = 1; ///< pairs over which YaRN's factor sets in
  float perPosition = 1;
  float magnitude = 1;
  bool interleaved = false;

  explicit Rotary(const Attrs &attrs);
  float frequency(int64_t pair) const;
};

/// Null, or the reason why the attributes cannot rotate a head of `channels` channels.
const char *checkRotary(const Attrs &attrs, int64_t channels);

/// Cosines and sines of a call's positions. They are stored in the call's workspace.
class Angles {
public:
  /// Number of cosines, and of sines, for heads [B, S, ...] with positions i32[B, S]. Without
  /// positions, rows have the positions 0 to S - 1.
  static int64_t size(const Attrs &attrs, const Tensor &heads, const Tensor *positions) {
    return rowsOf(heads, positions) * (attrs.rotary_dim / 2);
  }

  /// The angles for such heads. `isBackwards` negates them, for gradients.
  Angles(const Attrs &attrs, const Tensor &heads, const Tensor *positions, bool isBackwards,
         float *cosines, float *sines);

  /// Sets y to the n channels of x, the leading ones rotated by the angles of row `row` modulo the
  /// number of rows.
  void rotate(int64_t row, const float *x, int64_t n, float *y) const;

private:
  static int64_t rowsOf(const Tensor &heads, const Tensor *positions) {
    return heads.shape[1] * (positions != nullptr ? heads.shape[0] : 1);
  }

  const float *cosines_ = nullptr, *sines_ = nullptr;
  int64_t pairs_ = 0, rows_ = 1;
  bool isInterleaved_ = false;
};

} // namespace shardc::kernels::host
