#include "kernels/bench/HeadCases.h"

namespace shardc::kernels::bench {

void makeScalePositions(Builder &b) {
  const Model &m = b.model;
  b.attrs().position_step = 1;
  b.attrs().position_slope = 0.1;
  b.data({m.batch, m.positions, m.heads, m.channels}).ids({m.batch, m.positions}, m.positions);
  b.toData({m.batch, m.positions, m.heads, m.channels});
}

/// Rows are heads.
void makeL2Norm(Builder &b) {
  int64_t rows = b.model.batch * b.model.positions * b.model.heads, channels = b.model.channels;
  b.attrs().eps = 1e-5;
  b.data({rows, channels}).toData({rows, channels}).toFloats({rows});
}

void makeL2NormBwd(Builder &b) {
  int64_t rows = b.model.batch * b.model.positions * b.model.heads, channels = b.model.channels;
  b.data({rows, channels}).data({rows, channels}).floats({rows}).toData({rows, channels});
}

} // namespace shardc::kernels::bench
