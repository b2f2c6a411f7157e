// Rows that the members of a group give each other, written by kernels straight into each other's
// memory: only those that are there. Not in Kernels.def, since it is a collective. Launch errors
// are CUDA's last error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/Launch.h"

namespace shardc::kernels::cuda {

/// What one block of a member tells one block of another, which alone reads it. Calls are numbered,
/// from 1, and both sides count them.
struct alignas(32) PeerLine {
  uint64_t offset; ///< of the teller's result in its memory; before `ready`
  uint32_t ready;  ///< of this call the result may be written
  uint32_t done;   ///< of this call the teller's rows are written
};

/// A member's memory, as the device that writes to it sees it.
struct PeerView {
  std::byte *memory;
  PeerLine *lines; ///< [members, blocks]: what each member has told it
};

/// part j of member i's `in` to part i of member j's result, as far as its rows are there.
struct PeerRows {
  const std::byte *in = nullptr;
  std::byte *out = nullptr;
  const int32_t *counts = nullptr; ///< [slots, runs]: rows of `in`; a part has several slots or one
  int slots = 0, runs = 0;         ///< of a part; of a slot
  int64_t rows = 0;                ///< that a slot has room for
  int64_t rowBytes = 0;

  int index = 0, size = 0;         ///< of this member; members
  const PeerView *views = nullptr; ///< [size]; its own one, too
  uint32_t *calls = nullptr;       ///< [blocks]: of each block, so far
  uint64_t offset = 0;             ///< of `out` in this member's memory
  const uint32_t *stop = nullptr;  ///< not 0: nobody may be waited for any more
};

/// All members launch as many blocks, and each waits for all others. `blocks` have to fit the
/// device beside whatever other kernels wait for ranks.
void launchPeerRows(const PeerRows &rows, int blocks, Queue &queue);

/// As loadRankSum does.
cudaError_t loadPeerRows();

} // namespace shardc::kernels::cuda
