// Checks that the driver and NCCL found at run time are new enough for this program.
#pragma once

#include <string>

namespace shardc::cuda {

/// Why a driver for CUDA up to `driver` cannot run a program of CUDA `runtime` (1000·major +
/// 10·minor each); empty if it can, or if there is no driver (0), which the first call reports.
/// Inside of one major version older drivers do (CUDA's minor version compatibility).
std::string driverProblem(int driver, int runtime);

/// Why NCCL `found` does not do for a program built with `built` (NCCL_VERSION_CODE, both): it has
/// to be as new, patch releases apart, since `ncclConfig_t` grows with them.
std::string ncclProblem(int found, int built);

/// What this program was built with: `CUDA 13.0, NCCL 2.28.3`.
std::string libraryVersions();

/// The first problem of this process; empty if there is none.
std::string versionProblem();

} // namespace shardc::cuda
