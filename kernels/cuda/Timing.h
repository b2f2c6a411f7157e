// Which of several ways to do the same on a stream is fastest.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace shardc::kernels::cuda {

/// Queues the work once; false if it cannot run.
using Way = std::function<bool()>;

/// Index of the fastest, as fastestBy chooses; as many as there are if none can run. Returns when
/// the work has ended.
size_t fastest(const std::vector<Way> &ways, cudaStream_t stream);

} // namespace shardc::kernels::cuda
