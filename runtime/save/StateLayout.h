// Maps a rank's state to rows of parameters, for saves and loads. Shards cut blocks between rows,
// so a rank holds a part of a parameter, several parameters, or none.
#pragma once

#include <vector>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/exec/Mesh.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

/// Rows of one parameter, or of one of its moments, in a cell of a rank.
struct StatePiece {
  checkpoint::ParamPart part = checkpoint::ParamPart::Weight;
  uint32_t param = 0;                 ///< index in Plan::params
  uint32_t cell = 0;                  ///< index in Role::cells
  int64_t byteBegin = 0, bytes = 0;   ///< in the cell
  int64_t rowBegin = 0, rowCount = 0; ///< of the parameter

  bool operator==(const StatePiece &) const = default;
};

class StateLayout {
public:
  /// Finds the cells of master weights and moments. The plan outlives the layout. Unavailable
  /// where the state has no form in a checkpoint: several roles;
  /// InvalidInput where cells do not fit their blocks or a parameter has none.
  static Result<StateLayout> create(const plan::Plan &plan);

  /// What a rank holds, by cell. InvalidInput where a shard cuts a row.
  Result<std::vector<StatePiece>> pieces(int64_t rank) const;
  /// The same without what another rank saves: replicated state is divided among the ranks.
  Result<std::vector<StatePiece>> piecesToSave(int64_t rank) const;

  /// Every tensor of the state.
  std::vector<checkpoint::ParamRequest> requests() const;
  bool isGated(uint32_t param) const;
  checkpoint::Shape shapeOf(uint32_t param) const;
  /// Bytes of all parameters, and of their moments if asked for.
  int64_t bytes(bool withMoments) const;
  /// The bytes of a cell of the state that hold what a rank saves of it: `bytes` from `step` *
  /// index(group) on.
  struct Held {
    int64_t step = 0, bytes = 0;
    int16_t group = -1; ///< -1 where step is 0
  };
  Result<Held> toSnapshot(uint32_t cell) const;
  /// Cells that hold state: all of their bytes, padding included.
  std::vector<uint32_t> cells() const;

private:
  struct StateCell {
    checkpoint::ParamPart part;
    int32_t block;
    uint32_t cell;
  };

  explicit StateLayout(const plan::Plan &plan) : plan_(&plan) {}
  Status addBlock(int32_t block);
  Result<uint32_t> findCell(int32_t block, plan::CellKind kind) const;
  bool isReplicated(const StateCell &cell) const;
  Status addPieces(const StateCell &cell, const exec::GroupIndices &indices,
                   std::vector<StatePiece> &pieces) const;

  const plan::Plan *plan_;
  std::vector<StateCell> cells_;
};

} // namespace shardc::save
