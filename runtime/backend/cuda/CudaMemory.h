// Memory of the CUDA backend: one allocation a buffer. Device memory is cudaMalloc's; what peers
// touch is NCCL's, so that it can be registered; host memory is pinned and mapped, so kernels read
// it in place.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/Status.h"
#include "runtime/hal/Buffer.h"

namespace shardc::cuda {

/// Allocates on the device. `shared` asks for NCCL's allocator for Sym memory.
Result<std::unique_ptr<hal::Buffer>> allocateBuffer(int device, hal::MemoryKind kind, int64_t bytes,
                                                    std::string_view name, bool shared);

/// Bytes that could still be allocated, as far as device or system say.
int64_t bytesFree(int device, hal::MemoryKind kind);

} // namespace shardc::cuda
