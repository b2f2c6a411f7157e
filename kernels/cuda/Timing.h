// Autotuning: selects the fastest of several implementations of the same work on a stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace shardc::kernels::cuda {

/// Enqueues the work once; false if it cannot run.
using Way = std::function<bool()>;

/// Returns the index of the fastest implementation according to fastestBy(), or ways.size() if none
/// can run. Blocks until the work is complete.
size_t fastest(const std::vector<Way> &ways, cudaStream_t stream);

} // namespace shardc::kernels::cuda
