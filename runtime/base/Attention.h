// Determines the kernels for attention on a GPU: cuDNN's; hand-written ones for Hopper's tensor
// cores, about as fast; or hand-written ones on CUDA cores, which are tens of times slower.
// Compiler and backend share this decision, so predictions, warnings and refusals match the kernels
// that run.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

struct AttentionKind {
  DType type = DType::F32; ///< of queries, keys and values
  bool drops = false;      ///< dropout of probabilities
  bool isCausal = true;
  bool hasDocuments = false;    ///< masks of documents
  bool hasWindow = false;       ///< a query sees a number of keys before its own
  bool hasChunks = false;       ///< a query sees keys of its own part of the sequence
  bool isCapped = false;        ///< scores have a soft cap
  bool packed = false;          ///< queries, keys and values share rows
  bool hasSlices = false;       ///< queries and keys are slices of sequences
  bool hasAllKeys = false;      ///< of slices: queries are one, keys are whole sequences
  bool hasUnknownOrder = false; ///< causal, of slices whose positions only operands tell
  int64_t heads = 1, groups = 1;
  int64_t channels = 64, values = 64; ///< of a head's queries and keys, and of its values
};

/// Why cuDNN is not asked for attention. cuDNN may still refuse, depending on its version and the
/// device.
enum class CudnnBar : uint8_t {
  None,
  Type,          ///< anything but bf16 and f16
  Dropout,       ///< its masks differ from those of the plan
  Documents,     ///< it has no document masks
  SlidingWindow, ///< in slices, distances of positions are not those of rows
  Chunks,        ///< chunks are left to the hand-written kernels
  SoftCap,       ///< its graphs here have no tanh of scores
  Rows,          ///< heads do not have equal, aligned distances in their rows
  Positions,     ///< which keys a query sees follows from operands
};

CudnnBar cudnnBarOf(const AttentionKind &kind);

/// Whether the hand-written kernels for Hopper's tensor cores compute the attention. They are used
/// where cuDNN is not asked or refuses.
bool hasTileKernels(const AttentionKind &kind);

enum class AttentionKernels : uint8_t {
  Cudnn,
  Tiles, ///< on Hopper's tensor cores
  Plain, ///< on CUDA cores
};

/// The kernels of a GPU that is of the Hopper architecture or is not.
AttentionKernels attentionKernels(const AttentionKind &kind, bool isHopper);

/// Null, or why a GPU has no kernel for the attention. Neither has cuDNN.
const char *attentionRefusal(const AttentionKind &kind);

} // namespace shardc
