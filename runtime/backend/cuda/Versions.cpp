// NCCL is loaded at run time, so it may be older than the headers of the build; CUDA's driver must
// support the runtime that was linked.
#include "runtime/backend/cuda/Versions.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include "runtime/base/Reports.h"

namespace shardc::cuda {

Status checkDriver(int driver, int runtime) {
  if (driver == 0 || driver / 1000 >= runtime / 1000)
    return Status::ok();
  return makeStatus(report::DriverTooOld, driver / 1000, driver % 1000 / 10, runtime / 1000);
}

Status checkNccl(int found, int built) {
  if (found / 100 >= built / 100)
    return Status::ok();
  return makeStatus(report::NcclTooOld, found / 10000, found / 100 % 100, found % 100,
                    built / 10000, built / 100 % 100);
}

std::string libraryVersions() {
  return fmt::format("CUDA {}.{}, NCCL {}.{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                     NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

Status checkVersions() {
  int driver = 0, nccl = 0;
  cudaDriverGetVersion(&driver);
  RETURN_IF_ERROR(checkDriver(driver, CUDART_VERSION));
  return ncclGetVersion(&nccl) == ncclSuccess ? checkNccl(nccl, NCCL_VERSION_CODE) : Status::ok();
}

} // namespace shardc::cuda
