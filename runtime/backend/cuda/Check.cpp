// Callers react to lack of memory and to missing devices, so these errors have codes of their own;
// all others are internal errors.
#include "runtime/backend/cuda/Check.h"

#include <string_view>

namespace shardc::cuda {
namespace {

std::string_view fileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

} // namespace

Status toStatus(cudaError_t error, const char *call, const char *file, int line) {
  int device = -1;
  cudaGetDevice(&device);
  // Clears the error, so that the check of the next launch does not report it again.
  cudaGetLastError();
  StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::Exhausted
                    : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                            error == cudaErrorInvalidDevice
                        ? StatusCode::Unavailable
                        : StatusCode::Internal;
  return makeStatus(code, "{} ({}) on device {} in {} at {}:{}", cudaGetErrorString(error),
                    cudaGetErrorName(error), device, call, fileName(file), line);
}

Status toStatus(ncclResult_t error, const char *call, const char *file, int line) {
  const char *last = ncclGetLastError(nullptr);
  return makeStatus(StatusCode::Internal, "NCCL: {}{}{} in {} at {}:{}", ncclGetErrorString(error),
                    last && *last ? ": " : "", last ? last : "", call, fileName(file), line);
}

} // namespace shardc::cuda
