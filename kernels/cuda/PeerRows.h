// All-to-all of rows, in which kernels write the valid rows, and only those, directly into the
// memory of the other members. It is a collective, and therefore not in Kernels.def. A failed
// launch is CUDA's last error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

/// Flags that one block of a member writes for one block of another member, its only reader. Calls
/// are numbered from 1, and both sides count them.
struct alignas(32) PeerLine {
  uint64_t offset; ///< offset of the writer's result in its memory; valid before `ready`
  uint32_t ready;  ///< number of the call whose result may be written
  uint32_t done;   ///< number of the call whose rows the writer has written
};

/// A member's memory as mapped on the device that writes to it.
struct PeerView {
  std::byte *memory;
  PeerLine *lines; ///< [members, blocks]: flags written by each member
};

/// Copies the valid rows of part j of member i's `in` to part i of member j's result.
struct PeerRows {
  const std::byte *in = nullptr;
  std::byte *out = nullptr;
  const int32_t *counts = nullptr; ///< [slots, groups]: rows of `in`; a part has one or more slots
  int slots = 0, groups = 0;       ///< slots per part, groups per slot
  int64_t rows = 0;                ///< row capacity of a slot
  int64_t rowBytes = 0;

  int index = 0, size = 0;         ///< this member, and number of members
  const PeerView *views = nullptr; ///< [size], including its own
  uint32_t *calls = nullptr;       ///< [blocks]: number of calls so far
  uint64_t offset = 0;             ///< offset of `out` in this member's memory
  const uint32_t *stop = nullptr;  ///< abort flag: if not 0, kernels stop waiting
};

/// Enqueues the exchange. All members launch the same number of blocks, and each waits for all
/// others. Therefore `blocks` blocks must be resident together with all other kernels that wait for
/// ranks.
void launchPeerRows(const PeerRows &rows, int blocks, Queue &queue);

/// Loads the kernels early, for the same reason as loadRankSum().
cudaError_t loadPeerRows();

} // namespace shardc::kernels::cuda
