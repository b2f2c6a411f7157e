#include "test/unit/exec/Trained.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "runtime/save/StateLayout.h"

namespace shardc::test {

void readTensors(exec::Executable &executable, Trained &trained) {
  const plan::Plan &plan = executable.plan();
  Result<save::StateLayout> layout = save::StateLayout::create(plan);
  ASSERT_TRUE(layout.isOk()) << layout.status().message();
  for (size_t rank = 0; rank < executable.rankCount(); ++rank) {
    Result<std::vector<save::StatePiece>> pieces = layout->pieces(executable.worldRank(rank));
    ASSERT_TRUE(pieces.isOk()) << pieces.status().message();
    for (const save::StatePiece &piece : *pieces) {
      const plan::Cell &cell = layout->cellOf(piece);
      std::vector<float> values(static_cast<size_t>(piece.bytes / 4));
      uint8_t *address = *executable.arenas(rank).resolve(cell.place, cell.type.bytes(), cell.name);
      ASSERT_TRUE(
          executable.read(rank, address + piece.byteBegin, piece.bytes, values.data()).isOk());
      checkpoint::Shape whole = layout->shapeOf(piece.param);
      std::vector<float> &tensor = trained.tensors[layout->nameOf(piece)];
      tensor.resize(static_cast<size_t>(whole[0] * whole[1]));
      for (int64_t r = 0; r < piece.box.shape[0]; ++r)
        std::copy_n(values.begin() + r * piece.box.shape[1], piece.box.shape[1],
                    tensor.begin() + (piece.box.offset[0] + r) * whole[1] + piece.box.offset[1]);
    }
  }
}

} // namespace shardc::test
