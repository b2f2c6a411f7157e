// Dependent launches: a hand-written kernel may be put on the multiprocessors while what precedes
// it in its stream still runs; it waits there for the end of that (common.cuh), and its launch
// costs no gap. Each waits first of all, so what a kernel finds complete, its predecessor found
// complete before. Only kernels may precede: what else was queued is told here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace shardc::kernels::cuda {

enum class DependentLaunches : uint8_t {
  Never,
  AfterOwn,     ///< behind hand-written kernels
  AfterKernels, ///< behind those of libraries too, which trigger nothing before their end
};

/// What SHARDC_DEPENDENT_LAUNCHES says (0, 1, 2), else Never.
DependentLaunches dependentLaunches();
void setDependentLaunches(DependentLaunches which);

/// Whether the hand-written kernel that is about to be queued may be launched so; takes note of it.
bool mayDepend(cudaStream_t stream);

/// A library has queued kernels.
void noteLibrary(cudaStream_t stream);
/// Something else was queued: a copy, a wait, a collective.
void noteOther(cudaStream_t stream);

} // namespace shardc::kernels::cuda
