// Runs each implementation once to load it, then measures it with events. Implementations of less
// than 0.5 ms are averaged over several runs.
#include "kernels/cuda/Timing.h"

#include "kernels/cuda/Choices.h"

namespace shardc::kernels::cuda {
namespace {

/// Returns the milliseconds of one run, averaged over several runs if it is short; negative if it
/// cannot run. The first run loads the kernel and is not counted.
float timeOf(const Way &run, cudaStream_t stream) {
  constexpr float kEnough = 0.5f; // ms
  constexpr int kGroupsMax = 4;
  cudaEvent_t begin = nullptr, end = nullptr;
  bool good = cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess;
  float ms = 0;
  auto measure = [&](int runs) {
    good = good && cudaEventRecord(begin, stream) == cudaSuccess;
    for (int i = 0; good && i < runs; ++i)
      good = run();
    good = good && cudaEventRecord(end, stream) == cudaSuccess &&
           cudaEventSynchronize(end) == cudaSuccess &&
           cudaEventElapsedTime(&ms, begin, end) == cudaSuccess;
    return ms / static_cast<float>(runs);
  };
  measure(1);
  float mean = measure(1);
  if (mean < kEnough)
    mean = measure(kGroupsMax);
  for (cudaEvent_t event : {begin, end})
    if (event)
      cudaEventDestroy(event);
  cudaGetLastError();
  return good ? mean : -1;
}

} // namespace

size_t fastest(const std::vector<Way> &ways, cudaStream_t stream) {
  return fastestBy(ways.size(), [&](size_t way) { return timeOf(ways[way], stream); });
}

} // namespace shardc::kernels::cuda
