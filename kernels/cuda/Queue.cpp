// Decides whether a kernel may begin before its predecessor has ended (programmatic dependent
// launch). That requires a predecessor that is a kernel and signals it, and a kernel that waits
// before it reads.
#include "kernels/cuda/Queue.h"

#include <utility>

#include "kernels/cuda/AttentionCall.h"
#include "kernels/cuda/Grouped.h"
#include "kernels/cuda/Symmetric.h"
#include "runtime/base/Reports.h"

namespace shardc::kernels::cuda {
namespace {

/// Whether the next node of a capture has exactly one dependency and that one is a kernel. True
/// outside of captures.
bool followsKernel(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t *nodes = nullptr;
  size_t count = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count) !=
      cudaSuccess)
    return false; // the error remains CUDA's last error, which the backend queries
  if (status == cudaStreamCaptureStatusNone)
    return true;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  return status == cudaStreamCaptureStatusActive && count == 1 &&
         cudaGraphNodeGetType(nodes[0], &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
}

} // namespace

bool Queue::mayDepend() {
  DependentLaunches which = context_.options().dependentLaunches;
  Last last = std::exchange(last_, Last::Own);
  if (which == DependentLaunches::Never)
    return false;
  bool isWanted =
      last == Last::Own || (last == Last::Library && which == DependentLaunches::AfterKernels);
  return isWanted && hasClusters(*this) && followsKernel(stream_);
}

void Queue::reportError(std::string text) {
  if (!error_)
    error_ = makeReport(report::KernelFailed, text);
}

std::optional<Report> Queue::takeError() { return std::exchange(error_, std::nullopt); }

cudaStream_t streamOf(const Queue &queue) { return queue; }
bool hasClusters(const Queue &queue) {
  return kernelPath(LaunchKind(), queue.context().gpu()) == KernelPath::LaunchClusters;
}
KernelPath symmetricPathOf(int64_t side, int64_t depth, const Queue &queue) {
  return kernelPath(SymmetricKind{side, depth}, queue.context().gpu());
}
KernelPath groupedPathOf(const Call &call) {
  return kernelPath(groupedKindOf(call), contextOf(call).gpu());
}
KernelPath deltaPathOf(const Call &call) {
  return kernelPath(deltaKindOf(call), contextOf(call).gpu());
}
bool mayDepend(Queue &queue) { return queue.mayDepend(); }
void noteOther(Queue &queue) { queue.noteOther(); }

void reportError(Queue &queue, const char *what, cudaError_t error) {
  queue.reportError(std::string(what) + ": " + cudaGetErrorString(error));
}

} // namespace shardc::kernels::cuda
