// Tensor maps for the Tensor Memory Accelerator (TMA) of Hopper, which copies tiles of tensors.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/api/Kernel.h"

namespace shardc::kernels::cuda {

/// A tensor with three dimensions, innermost first, and the size of the tile that a copy moves. A
/// row of a tile has up to 128 bytes. In shared memory, rows are 128 bytes apart, and their 16-byte
/// parts are swizzled by row. Elements outside the tensor read as zero and are not written.
struct TiledTensor {
  const void *data;
  DType dtype; ///< f32, bf16, f16, or an 8-bit type
  int64_t extents[3];
  uint32_t tile[2]; ///< of the two inner dimensions
};

/// Encodes the tensor map. Returns false if the driver refuses or lacks the function.
bool encodeTensorMap(const TiledTensor &tensor, CUtensorMap &map);

} // namespace shardc::kernels::cuda
