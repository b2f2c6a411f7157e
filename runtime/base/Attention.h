// Which kernels form attention on a GPU: cuDNN's, on tensor cores, or hand-written ones on CUDA
// cores, tens of times slower. Compiler and backend both ask here, so what is predicted, and warned
// of, is what runs.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

struct AttentionKind {
  DType type = DType::F32;   ///< of queries, keys and values
  bool drops = false;        ///< dropout of probabilities
  bool hasDocuments = false; ///< masks of documents
  bool packed = false;       ///< heads lie in common rows of queries, keys and values
  int64_t heads = 1, groups = 1, channels = 64;
};

/// Why cuDNN is not asked to serve attention. It may still refuse what it is asked for, by the
/// library's version and the device.
enum class CudnnBar : uint8_t {
  None,
  Type,      ///< anything but bf16
  Dropout,   ///< its masks are not those of the plan
  Documents, ///< it has no masks of documents
  Rows,      ///< heads do not stand at equal, aligned distances in their rows
};

CudnnBar cudnnBarOf(const AttentionKind &kind);

} // namespace shardc
