// Times launches on a GPU.
#pragma once

#include <algorithm>
#include <vector>

#include <cuda_runtime.h>

namespace shardc::kernels::bench {

/// Returns the median of `count` launches on the stream, in milliseconds, after `warmup` launches;
/// -1 after a failure.
template <typename Launch>
double medianMilliseconds(int count, int warmup, Launch launch, cudaStream_t stream = nullptr) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < warmup + count; ++i) {
    cudaEventRecord(begin, stream);
    launch();
    cudaEventRecord(end, stream);
    if (cudaEventSynchronize(end) != cudaSuccess)
      return -1;
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (i >= warmup)
      times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const auto middle = times.begin() + count / 2;
  std::nth_element(times.begin(), middle, times.end());
  return static_cast<double>(*middle);
}

/// Returns the median of 15 launches, in microseconds, after 3 warmup launches; -1 after a failure.
template <typename Launch> double medianMicroseconds(Launch launch) {
  const double milliseconds = medianMilliseconds(15, 3, launch);
  return milliseconds < 0 ? -1 : milliseconds * 1e3;
}

} // namespace shardc::kernels::bench
