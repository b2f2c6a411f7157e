// Faults that a test injects into a stream: a kernel that fails, and a kernel that never ends and
// so blocks everything after it. One thread each.
#include "runtime/backend/cuda/Kernels.h"

namespace shardc::cuda {
namespace {

__global__ void trapAtOnce() { asm volatile("trap;"); }

__global__ void holdForEver() {
  while (true)
    asm volatile("nanosleep.u32 1000;");
}

} // namespace

void launchTrap(cudaStream_t stream) { trapAtOnce<<<1, 1, 0, stream>>>(); }

void launchHold(cudaStream_t stream) { holdForEver<<<1, 1, 0, stream>>>(); }

} // namespace shardc::cuda
