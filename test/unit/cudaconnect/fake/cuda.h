// Replaces the driver's header (cuda_runtime.h).
#pragma once

using CUdeviceptr = unsigned long long;
enum CUresult { CUDA_SUCCESS = 0 };
