// Checks that the driver and NCCL found at run time are new enough for this program.
#pragma once

#include <string>

#include "runtime/base/Status.h"

namespace shardc::cuda {

/// Unavailable if a driver for CUDA up to `driver` cannot run a program of CUDA `runtime`
/// (1000·major + 10·minor each). Within one major version, older drivers work (CUDA's minor version
/// compatibility). Ok if there is no driver (0), since the first CUDA call reports that.
Status checkDriver(int driver, int runtime);

/// Unavailable if NCCL `found` is too old for a program built with `built` (both
/// NCCL_VERSION_CODE). It must be as new, apart from the patch release, since `ncclConfig_t` grows
/// with the version.
Status checkNccl(int found, int built);

/// The versions with which this program was built, such as `CUDA 13.0, NCCL 2.28.3`.
std::string libraryVersions();

/// Checks the driver and NCCL of this process.
Status checkVersions();

} // namespace shardc::cuda
