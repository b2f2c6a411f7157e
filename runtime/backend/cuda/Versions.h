// Checks that the driver and NCCL found at run time are new enough for this program.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Unavailable if a driver for CUDA up to `driver` cannot run a program of CUDA `runtime`
/// (1000·major + 10·minor each). Ok if there is no driver (0), which the first call reports. Inside
/// of one major version older drivers do (CUDA's minor version compatibility).
Status checkDriver(int driver, int runtime);

/// Unavailable if NCCL `found` does not do for a program built with `built` (NCCL_VERSION_CODE,
/// both): it has to be as new, patch releases apart, since `ncclConfig_t` grows with them.
Status checkNccl(int found, int built);

/// The versions with which this program was built: `CUDA 13.0, NCCL 2.28.3`.
std::string libraryVersions();

/// Both, of this process.
Status checkVersions();

} // namespace shardc::cuda
