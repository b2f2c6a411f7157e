// Describes the copies of a plan's background segments: which bytes of which cells end up where in
// host memory.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Bytes of a cell, and where a snapshot puts them.
struct SnapshotCopy {
  uint32_t cell = 0; ///< index in Role::cells
  plan::Moving byteBegin;
  int64_t bytes = 0;
  plan::Place place; ///< in the arena `host`
};

/// The copies of one role's background segments to the host: of a single segment, or of a segment
/// that stages on the device and those that copy the staged data.
struct RoleSnapshot {
  std::vector<uint32_t> segments;   ///< in their order, as exec::Executable numbers them
  std::vector<SnapshotCopy> copies; ///< by cell, then by place in the cell
  uint32_t role = 0;                ///< index in Plan::roles
};

/// Copies that happen together: each role's next one, if it has one more.
struct SnapshotPiece {
  std::vector<RoleSnapshot> roles;
};

/// The plan's background segments in order; empty if it has none. InvalidInput unless together they
/// copy everything that a rank saves of each cell exactly once, from beginning to end.
Result<std::vector<SnapshotPiece>> snapshotPieces(const plan::Plan &plan,
                                                  const StateLayout &layout);

} // namespace shardc::save
