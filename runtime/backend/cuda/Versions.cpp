#include "runtime/backend/cuda/Versions.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

namespace shardc::cuda {

std::string driverProblem(int driver, int runtime) {
  if (driver == 0 || driver / 1000 >= runtime / 1000)
    return "";
  return fmt::format("the driver is for CUDA {}.{}; this program needs one for CUDA {}.0 or later",
                     driver / 1000, driver % 1000 / 10, runtime / 1000);
}

std::string ncclProblem(int found, int built) {
  if (found / 100 >= built / 100)
    return "";
  return fmt::format("NCCL {}.{}.{} was found; this program needs {}.{} or later", found / 10000,
                     found / 100 % 100, found % 100, built / 10000, built / 100 % 100);
}

std::string libraryVersions() {
  return fmt::format("CUDA {}.{}, NCCL {}.{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                     NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

std::string versionProblem() {
  int driver = 0, nccl = 0;
  cudaDriverGetVersion(&driver);
  if (std::string problem = driverProblem(driver, CUDART_VERSION); !problem.empty())
    return problem;
  return ncclGetVersion(&nccl) == ncclSuccess ? ncclProblem(nccl, NCCL_VERSION_CODE) : "";
}

} // namespace shardc::cuda
