// Maps a rank's state to boxes of the tensors in checkpoints, for saves and loads. Shards split
// blocks between rows, and parameters may be split or stacked, so a rank may hold boxes of one
// tensor, of several, or of none.
#pragma once

#include <vector>

#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/exec/Mesh.h"
#include "runtime/exec/Ranges.h"
#include "runtime/plan/Plan.h"

namespace shardc::save {

/// A box of one tensor, or of one of its moments, stored row by row in a cell of a rank.
struct StatePiece {
  checkpoint::ParamPart part = checkpoint::ParamPart::Weight;
  uint32_t param = 0;               ///< index in Plan::params
  uint32_t cell = 0;                ///< index in Role::cells
  int64_t byteBegin = 0, bytes = 0; ///< bytes in the cell
  checkpoint::Box box;              ///< box of the tensor
  int64_t number = 0;               ///< number of the tensor, if the parameter is stacked
  uint32_t role = 0;                ///< role of the rank: index in Plan::roles
  /// If the cell has remainders, the cell with the upper halves of the same elements.
  uint32_t upper = plan::kNone;

  bool operator==(const StatePiece &) const = default;
};

class StateLayout {
public:
  /// Finds the cells of master weights and moments of all roles. The plan must outlive the layout.
  /// InvalidInput if cells do not match their blocks, a parameter has no block, or a block no
  /// cells.
  static Result<StateLayout> create(const plan::Plan &plan);

  /// The pieces of state that a rank holds, sorted by cell. InvalidInput if a shard splits a row.
  Result<std::vector<StatePiece>> pieces(int64_t rank) const;
  /// The pieces that the rank saves. If ranks of several roles hold the same elements, the first
  /// rank saves them. Replicated state is divided among ranks.
  Result<std::vector<StatePiece>> piecesToSave(int64_t rank) const;
  /// The same for weights only. It includes frozen weights, which saves leave out since another
  /// checkpoint has them.
  Result<std::vector<StatePiece>> weightsOnce(int64_t rank) const;

  /// All tensors of the state.
  std::vector<checkpoint::ParamRequest> requests() const;
  std::string nameOf(const StatePiece &piece) const;
  const plan::Cell &cellOf(const StatePiece &piece) const;
  /// The cell with the upper halves of a piece.
  const plan::Cell &upperOf(const StatePiece &piece) const {
    return plan_->roles[piece.role].cells[piece.upper];
  }
  /// The element type of a piece in a checkpoint: that of its cell, or f32 if halves are joined.
  DType typeOf(const StatePiece &piece) const {
    return piece.upper == plan::kNone ? cellOf(piece).type.dtype : DType::F32;
  }
  /// Bytes of a piece in a checkpoint.
  static int64_t bytesOf(const StatePiece &piece) {
    return piece.upper == plan::kNone ? piece.bytes : 2 * piece.bytes;
  }
  bool isGated(uint32_t param) const;
  /// The shape of the parameter's tensor, or of each tensor of its stack.
  checkpoint::Shape shapeOf(uint32_t param) const;
  /// Bytes of all tensors, and with `withMoments` also of their moments.
  int64_t bytes(bool withMoments) const;
  /// The part of a cell that a rank saves: `bytes` bytes from `step` · index(group) on.
  struct Held {
    int64_t step = 0, bytes = 0;
    int16_t group = -1; ///< -1 if step is 0
  };
  Result<Held> toSnapshot(uint32_t cell, uint32_t role = 0) const;
  /// The cells of a role that contain state, with all of their bytes including padding.
  std::vector<uint32_t> cells(uint32_t role = 0) const;

private:
  struct StateCell {
    checkpoint::ParamPart part;
    int32_t block;
    uint32_t cell;
    uint32_t upper = plan::kNone; ///< see StatePiece
  };

  struct Holder {
    int64_t rank;
    uint32_t role;
    exec::GroupIndices indices;
  };

  explicit StateLayout(const plan::Plan &plan) : plan_(&plan), cells_(plan.roles.size()) {}
  Status addBlock(uint32_t role, int32_t block);
  Status addMoments(uint32_t role, int32_t block);
  Result<uint32_t> findCell(uint32_t role, int32_t block, plan::CellKind kind) const;
  bool hasBlock(uint32_t role, int32_t block) const;
  const plan::Type &typeOf(uint32_t role, const StateCell &cell) const {
    return plan_->roles[role].cells[cell.cell].type;
  }
  bool isReplicated(uint32_t role, const StateCell &cell) const;
  bool isFirstWith(const plan::Param &param, int64_t rank) const;
  Result<std::vector<StatePiece>> pieces(int64_t rank, bool isOnce, bool hasBase) const;
  Status addPieces(const StateCell &cell, const Holder &holder, bool isOnce,
                   std::vector<StatePiece> &pieces) const;

  const plan::Plan *plan_;
  std::vector<std::vector<StateCell>> cells_; ///< by role
};

} // namespace shardc::save
