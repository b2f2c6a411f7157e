// Programmatic dependent launches. A hand-written kernel may be resident on the multiprocessors
// while its predecessor in the stream still runs. It first waits for the predecessor's end
// (common.cuh), so the launch leaves no gap, and everything that the predecessor saw complete is
// complete for it too. Only kernels may precede such a launch; other work must be announced here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace shardc::kernels::cuda {

enum class DependentLaunches : uint8_t {
  Never,
  AfterOwn,     ///< after hand-written kernels
  AfterKernels, ///< after kernels of libraries too, which trigger nothing before their end
};

/// The value of SHARDC_DEPENDENT_LAUNCHES (0, 1, 2), or Never.
DependentLaunches dependentLaunches();
void setDependentLaunches(DependentLaunches which);

/// Whether the hand-written kernel enqueued next may be a dependent launch; records the launch.
bool mayDepend(cudaStream_t stream);

/// Announces kernels of a library.
void noteLibrary(cudaStream_t stream);
/// Announces other work: a copy, a wait, a collective.
void noteOther(cudaStream_t stream);

} // namespace shardc::kernels::cuda
