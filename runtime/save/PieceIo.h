// Reads and writes pieces of state in a rank's memory, in the element types of checkpoints: master
// weights in two halves are joined when they are read and split when they are written.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/exec/Executable.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Join bf16 weights and u16 remainders to f32 elements, and split them again.
void joinHalves(const uint8_t *weights, const uint8_t *remainders, int64_t count, uint8_t *masters);
void splitHalves(const uint8_t *masters, int64_t count, uint8_t *weights, uint8_t *remainders);

/// Transfer all bytes of the piece, in the form of StateLayout::bytesOf. Nothing may be queued.
Status readPiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                 const StatePiece &piece, std::vector<uint8_t> &bytes);
Status writePiece(exec::Executable &executable, size_t rank, const StateLayout &layout,
                  const StatePiece &piece, const std::vector<uint8_t> &bytes);

} // namespace shardc::save
