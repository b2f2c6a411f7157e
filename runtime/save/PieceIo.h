// Reads pieces of state from a rank's memory and writes them there, in the numbers that checkpoints
// have: master weights that are kept in two halves are joined and split on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Joins bf16 weights and u16 remainders to f32 elements, and splits them again.
void joinHalves(const uint8_t *weights, const uint8_t *remainders, int64_t count, uint8_t *masters);
void splitHalves(const uint8_t *masters, int64_t count, uint8_t *weights, uint8_t *remainders);

/// All bytes of the piece, as StateLayout::bytesOf counts them; nothing may be queued.
Status readPiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                 const StatePiece &piece, std::vector<uint8_t> &bytes);
Status writePiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                  const StatePiece &piece, const std::vector<uint8_t> &bytes);

} // namespace shardc::save
