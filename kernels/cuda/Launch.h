// The part of Queue.h that hand-written kernels need for a launch. It is a separate header because
// nvcc reads each header four times per object, and Queue.h is long.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

class Queue;

/// The queue of a call.
inline Queue &queueOf(const Call &call) { return *static_cast<Queue *>(call.stream); }

cudaStream_t streamOf(const Queue &queue);
/// Calls Queue::mayDepend(), which also records the following launch.
bool mayDepend(Queue &queue);
/// Calls Queue::noteOther(): announces work that is not a kernel.
void noteOther(Queue &queue);
/// Calls Queue::reportError() for an error of the library function `what`.
void reportError(Queue &queue, const char *what, cudaError_t error);

} // namespace shardc::kernels::cuda
