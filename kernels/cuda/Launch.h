// The part of Queue.h that hand-written kernels need for a launch. It is a separate header because
// nvcc reads each header four times per object, and Queue.h is long.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

class Queue;

/// The queue of a call.
inline Queue &queueOf(const Call &call) { return *static_cast<Queue *>(call.stream); }

/// The multiprocessors for which a call divides its work, of the plan's device or of this one. The
/// order of sums depends on it, and nothing else of the device does.
int multiprocessorsOf(const Call &call);

cudaStream_t streamOf(const Queue &queue);
/// Whether kernels have clusters of blocks, and wait for their predecessor themselves: they do if
/// the device has such instructions and their code was compiled for it.
bool hasClusters(const Queue &queue);
/// Calls Queue::mayDepend(), which also records the following launch.
bool mayDepend(Queue &queue);
/// Calls Queue::noteOther(): announces work that is not a kernel.
void noteOther(Queue &queue);
/// Calls Queue::reportError() for an error of the library function `what`.
void reportError(Queue &queue, const char *what, cudaError_t error);

} // namespace shardc::kernels::cuda
