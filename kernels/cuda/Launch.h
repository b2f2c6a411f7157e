// What a hand-written kernel needs of the queue that it is launched on, without the classes behind
// it (Queue.h): nvcc reads the headers of an object four times, and those of reports and functions
// take as long as CUDA's own.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

class Queue;

/// The queue of a call.
inline Queue &queueOf(const Call &call) { return *static_cast<Queue *>(call.stream); }

cudaStream_t streamOf(const Queue &queue);
/// Queue::mayDepend: the launch that follows is recorded.
bool mayDepend(Queue &queue);
/// Queue::noteOther: announces other work than a kernel.
void noteOther(Queue &queue);
/// Keeps an error of a library that `what` names, as Queue::reportError does.
void reportError(Queue &queue, const char *what, cudaError_t error);

} // namespace shardc::kernels::cuda
