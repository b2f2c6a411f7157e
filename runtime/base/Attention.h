// Chooses the kernels for attention on a GPU: those of cuDNN; hand-written kernels for Hopper's
// tensor cores, which are about as fast; or hand-written kernels on CUDA cores, which are tens of
// times slower. Compiler and backend share this choice, so predictions, warnings and refusals match
// the kernels that run.
#pragma once

#include <cstdint>

#include "runtime/base/DType.h"

namespace shardc {

/// The properties of an attention op on which the choice of kernels depends.
struct AttentionKind {
  DType type = DType::F32; ///< type of queries, keys and values
  bool drops = false;      ///< dropout of attention probabilities
  bool isCausal = true;
  bool hasDocuments = false;    ///< document masks
  bool hasWindow = false;       ///< a query sees only a number of keys before its own position
  bool hasChunks = false;       ///< a query sees only keys of its own chunk of the sequence
  bool isCapped = false;        ///< scores are soft-capped
  bool packed = false;          ///< queries, keys and values share rows
  bool hasSlices = false;       ///< queries and keys are slices of sequences
  bool hasAllKeys = false;      ///< with slices: the keys are whole sequences
  bool hasUnknownOrder = false; ///< causal slices whose positions are known only from operands
  int64_t heads = 1, groups = 1;
  int64_t channels = 64, values = 64; ///< head sizes: of queries and keys, and of values
};

/// The reason why cuDNN is not used for attention. cuDNN may also refuse, depending on its version
/// and the device.
enum class CudnnBar : uint8_t {
  None,
  Type,          ///< neither bf16 nor f16
  Dropout,       ///< its dropout masks differ from those of the plan
  Documents,     ///< it does not support document masks
  SlidingWindow, ///< in slices, the distance of positions differs from that of rows
  Chunks,        ///< the hand-written kernels compute chunks
  SoftCap,       ///< our cuDNN graphs do not apply tanh to scores
  Rows,          ///< heads are not evenly spaced or not aligned in their rows
  Positions,     ///< operands determine which keys a query sees
};

/// The first reason that applies; None if cuDNN is tried.
CudnnBar cudnnBarOf(const AttentionKind &kind);

/// Whether the hand-written kernels for Hopper's tensor cores support the attention. They are used
/// if cuDNN is not used or refuses.
bool hasTileKernels(const AttentionKind &kind);

/// The three choices, from the fastest on.
enum class AttentionKernels : uint8_t {
  Cudnn,
  Tiles, ///< on Hopper's tensor cores
  Plain, ///< on CUDA cores
};

/// The kernels that a GPU uses, depending on whether its architecture is Hopper.
AttentionKernels attentionKernels(const AttentionKind &kind, bool isHopper);

/// Why no kernel on a GPU, including cuDNN's, supports the attention; null if one does.
const char *attentionRefusal(const AttentionKind &kind);

} // namespace shardc
