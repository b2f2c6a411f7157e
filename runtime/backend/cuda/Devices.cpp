// Lists the devices, whose numbers are relative to CUDA_VISIBLE_DEVICES.
#include "runtime/backend/cuda/Devices.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "runtime/base/Reports.h"

namespace shardc::cuda {

Result<int> deviceCount() {
  int count = 0;
  if (cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    int driver = 0; // CUDA calls a missing driver an old one
    if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        driver == 0)
      return makeStatus(report::NoDriver);
    return makeStatus(StatusCode::Unavailable, "no CUDA device can be used: {}",
                      cudaGetErrorString(error));
  }
  return count;
}

Result<int> deviceOf(int64_t localRank) {
  ASSIGN_OR_RETURN(int count, deviceCount());
  if (count == 1)
    return 0;
  if (localRank < count)
    return static_cast<int>(localRank);
  return makeStatus(StatusCode::Unavailable,
                    "no GPU for local rank {}: found {} visible, needed {}", localRank, count,
                    localRank + 1);
}

std::string nameOf(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess)
    return properties.name;
  cudaGetLastError();
  return "";
}

std::string uuidOf(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return "";
  }
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    bool startsGroup = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    fmt::format_to(std::back_inserter(text), "{}{:02x}", startsGroup ? "-" : "", byte);
  }
  return text;
}

} // namespace shardc::cuda
