// Memory of the CUDA backend: one allocation per buffer. Device memory comes from cudaMalloc;
// memory for peers comes from NCCL, so that it can be registered; host memory is pinned and mapped,
// so that kernels read it in place.
#pragma once

#include <memory>
#include <string_view>

#include <cuda_runtime.h>

#include "runtime/base/Status.h"
#include "runtime/hal/Backend.h"

namespace shardc::cuda {

/// cudaMalloc, counted: all device memory of this process comes from here or from allocateBuffer.
cudaError_t allocateDevice(void **data, size_t bytes);
/// How often device memory has been allocated.
int64_t allocationCount();

/// Allocates on the device. `shared` asks for NCCL's allocator for Sym memory.
Result<std::unique_ptr<hal::Buffer>> allocateBuffer(int device, hal::MemoryKind kind, int64_t bytes,
                                                    std::string_view name, bool shared);

/// Whether buffers made from here on lie between zones of known bytes, of a page or more each.
void keepGuards(bool wanted);

/// InvalidInput with the first place outside of a buffer between zones that was written to. Nothing
/// may be running.
Status checkGuards();

/// Bytes that could still be allocated, as far as device or system say.
int64_t bytesFree(int device, hal::MemoryKind kind);

/// What the driver says of the device's memory; zeros if it does not.
hal::DeviceMemory memoryOf(int device);

} // namespace shardc::cuda
