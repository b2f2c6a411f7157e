// Selects the fastest of several implementations of the same work on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace shardc::kernels::cuda {

/// Enqueues the work once; false if it cannot run.
using Way = std::function<bool()>;

/// Index of the fastest according to fastestBy, or the number of implementations if none can run.
/// Returns when the work has ended.
size_t fastest(const std::vector<Way> &ways, cudaStream_t stream);

} // namespace shardc::kernels::cuda
