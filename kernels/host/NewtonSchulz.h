// What Newton-Schulz steps on whole matrices and on parts of them share: Muon.cpp describes a step.
#pragma once

#include "kernels/host/Blas.h"
#include "kernels/host/Convert.h"
#include "kernels/host/Matrices.h"
#include "kernels/host/Scratch.h"
#include "runtime/base/NewtonSchulz.h"

namespace shardc::kernels::host {

struct NsBuffers {
  float *x, *y;          ///< a matrix or part, and the result of a step
  float *square, *mixed; ///< A, and b·A + c·A²: as many rows and columns as the undivided side

  NsBuffers(const Call &call, Scratch &scratch) {
    for (float **buffer : {&x, &y, &square, &mixed})
      *buffer = scratch.take<float>(call.attrs.largest_matrix);
  }
};

/// Whether products are rounded to bf16.
inline bool roundsProducts(const Call &call) {
  return static_cast<NsProducts>(call.attrs.products) == NsProducts::Medium;
}
inline void roundProduct(const Call &call, float *x, int64_t n) {
  for (int64_t i = 0; roundsProducts(call) && i < n; ++i)
    x[i] = toFloat(toBF16(x[i]));
}

/// b·A + c·A² as a matrix times a number.
struct Mixed {
  const float *matrix;
  float times;
};

/// Rounds A, which is in buffers.square.
inline Mixed mixOf(const Call &call, const NsStep &step, int64_t side, const NsBuffers &buffers) {
  float *square = buffers.square, *mixed = buffers.mixed;
  roundProduct(call, square, side * side);
  if (step.c == 0)
    return {square, step.b};
  std::copy_n(square, side * side, mixed);
  gemm(side, side, side, step.c, {square, side}, {square, side}, step.b, mixed, side);
  roundProduct(call, mixed, side * side);
  return {mixed, 1};
}

} // namespace shardc::kernels::host
