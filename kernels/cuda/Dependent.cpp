#include "kernels/cuda/Dependent.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace shardc::kernels::cuda {
namespace {

enum class Last : uint8_t { Other, Library, Own };

struct Streams {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, Last> last;
};

Streams &streams() {
  static Streams instance;
  return instance;
}

Last exchange(cudaStream_t stream, Last now) {
  Streams &all = streams();
  std::lock_guard lock(all.mutex);
  Last &last = all.last[stream];
  return std::exchange(last, now);
}

std::atomic<DependentLaunches> &chosen() {
  static std::atomic<DependentLaunches> instance = [] {
    const char *value = std::getenv("SHARDC_DEPENDENT_LAUNCHES");
    std::string_view text = value ? value : "";
    return text == "1"   ? DependentLaunches::AfterOwn
           : text == "2" ? DependentLaunches::AfterKernels
                         : DependentLaunches::Never;
  }();
  return instance;
}

/// Whether the device runs our machine code for Hopper. Code from PTX for older devices does not
/// wait for its predecessor.
bool runsWaits() {
  constexpr int kDevicesMax = 64;
  static std::array<std::atomic<int>, kDevicesMax> majors{};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevicesMax)
    return false;
  std::atomic<int> &major = majors[static_cast<size_t>(device)];
  if (int known = major; known > 0)
    return known == 9;
  int found = 0;
  cudaDeviceGetAttribute(&found, cudaDevAttrComputeCapabilityMajor, device);
  major = found;
  return found == 9;
}

/// During capture: whether the next node has exactly one dependency, and that is a kernel.
bool followsKernel(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t *nodes = nullptr;
  size_t count = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &count) !=
      cudaSuccess)
    return false; // the last error reports it
  if (status == cudaStreamCaptureStatusNone)
    return true;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  return status == cudaStreamCaptureStatusActive && count == 1 &&
         cudaGraphNodeGetType(nodes[0], &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
}

} // namespace

DependentLaunches dependentLaunches() { return chosen(); }
void setDependentLaunches(DependentLaunches which) { chosen() = which; }

bool mayDepend(cudaStream_t stream) {
  DependentLaunches which = chosen();
  if (which == DependentLaunches::Never)
    return false;
  Last last = exchange(stream, Last::Own);
  bool isWanted =
      last == Last::Own || (last == Last::Library && which == DependentLaunches::AfterKernels);
  return isWanted && runsWaits() && followsKernel(stream);
}

void noteLibrary(cudaStream_t stream) {
  if (chosen() != DependentLaunches::Never)
    exchange(stream, Last::Library);
}

void noteOther(cudaStream_t stream) {
  if (chosen() != DependentLaunches::Never)
    exchange(stream, Last::Other);
}

} // namespace shardc::kernels::cuda
