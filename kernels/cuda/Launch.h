// The part of Queue.h that hand-written kernels need to launch. It is separate for build time: nvcc
// reads the headers of an object four times.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

class Queue;

/// The queue of a call.
inline Queue &queueOf(const Call &call) { return *static_cast<Queue *>(call.stream); }

cudaStream_t streamOf(const Queue &queue);
/// Queue::mayDepend(): the following launch is recorded.
bool mayDepend(Queue &queue);
/// Queue::noteOther(): announces work other than a kernel.
void noteOther(Queue &queue);
/// Queue::reportError() for an error of the library function `what`.
void reportError(Queue &queue, const char *what, cudaError_t error);

} // namespace shardc::kernels::cuda
