// Declares one constant per CUDA row of Kernels.def; its family's file defines it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// `swiglu_amax_cuda` for op `swiglu.amax`.
template <size_t N> struct KernelName {
  char text[N];
  consteval KernelName(const char (&op)[N]) { std::replace_copy(op, op + N, text, '.', '_'); }
};

#define CUDA_KERNEL(enumerator, op, family, dtypes)                                                \
  extern const Kernel k##enumerator;                                                               \
  inline constexpr KernelName kName##enumerator(op "_cuda");
#include "kernels/Kernels.def"

} // namespace shardc::kernels::cuda
