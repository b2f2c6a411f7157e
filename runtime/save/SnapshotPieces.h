// Describes the copies of a plan's background segments: which bytes of which cells are copied to
// which place in host memory.
#pragma once

#include <vector>

#include "runtime/plan/Coordinates.h"
#include "runtime/save/StateLayout.h"

namespace shardc::save {

/// Bytes of a cell, and their place in a snapshot.
struct SnapshotCopy {
  uint32_t cell = 0; ///< index in Role::cells
  plan::Moving byteBegin;
  int64_t bytes = 0;
  plan::Place place; ///< in arena `host`
};

/// The copies of one role's background segments to the host: those of a single segment, or of a
/// segment that stages on the device and the segments that copy the staged data.
struct RoleSnapshot {
  std::vector<uint32_t> segments;   ///< numbers in exec::Executable, in order
  std::vector<SnapshotCopy> copies; ///< sorted by cell, then by position in the cell
  uint32_t role = 0;                ///< index in Plan::roles
};

/// Copies that are made together: the next RoleSnapshot of each role that has another one.
struct SnapshotPiece {
  std::vector<RoleSnapshot> roles;
};

/// The copies of the plan's background segments, in order; empty if it has none. InvalidInput
/// unless they together copy everything that a rank saves of each cell exactly once, from begin to
/// end.
Result<std::vector<SnapshotPiece>> snapshotPieces(const plan::Plan &plan,
                                                  const StateLayout &layout);

} // namespace shardc::save
