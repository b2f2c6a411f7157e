// The layout of a rank's state in an image (StateImages.h): the progress of the job, followed by
// everything that the plan's background segments copy.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/save/RunProgress.h"
#include "runtime/save/SnapshotPieces.h"

namespace shardc::save {

class ImageLayout {
public:
  /// PlanCannotRun if the plan copies its state in several pieces. Plan and layout must outlive it.
  static Result<ImageLayout> create(const plan::Plan &plan, const StateLayout &layout,
                                    const std::vector<SnapshotPiece> &pieces);

  /// Bytes that a rank of the role copies.
  int64_t stateBytes(uint32_t role) const { return roles_[role].bytes; }
  /// The copies of a rank of this role, in the order of its image.
  const std::vector<SnapshotCopy> &copies(uint32_t role) const { return roles_[role].copies; }

  /// Bytes of an image that contain a part of a piece of state, row by row.
  struct Source {
    int64_t owner = 0;
    int64_t at = 0;      ///< offset in the state of the image
    int64_t upperAt = 0; ///< offset of the upper halves, if the piece has any
    checkpoint::Box box; ///< box of the piece's tensor
  };
  /// Finds the pieces that each rank saves. Call it before `sourcesOf`.
  Status findSaved();
  /// The sources of a whole piece of state, each element once. The piece belongs to a rank of
  /// `other`, the layout of the same model on any number of ranks.
  Result<std::vector<Source>> sourcesOf(const StatePiece &piece, const StateLayout &other) const;

private:
  struct RoleCopies {
    std::vector<SnapshotCopy> copies;
    int64_t bytes = 0;
  };
  /// A piece of state, and the rank that saves it.
  struct Saved {
    int64_t owner;
    StatePiece piece;
  };
  using Key = std::pair<checkpoint::ParamPart, std::string>; ///< part and name of the tensor

  ImageLayout(const plan::Plan &plan, const StateLayout &layout) : plan_(&plan), layout_(&layout) {}
  Result<int64_t> placeOf(int64_t owner, uint32_t role, uint32_t cell, int64_t begin,
                          int64_t bytes) const;

  const plan::Plan *plan_;
  const StateLayout *layout_;
  std::vector<RoleCopies> roles_;
  std::map<Key, std::vector<Saved>> saved_;
};

/// Serialises the progress for processes of the same program and plan.
std::string packProgress(const Progress &progress);
/// Parses packProgress(); InvalidInput if the bytes are malformed.
Result<Progress> unpackProgress(std::string_view bytes);
/// Upper bound of the size of packProgress() for a run of the plan.
int64_t progressBytesMax(const plan::Plan &plan);

} // namespace shardc::save
