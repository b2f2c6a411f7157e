// How collectives change placements: the MOVE rows of Spec.def, and how they apply to a value.
#pragma once

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

enum class Layout : uint8_t { Any, Dims, Outermost };

/// A MOVE row.
struct Move {
  OpKind kind = OpKind::AllGather;
  Place::Kind place = Place::Whole;
  Layout order = Layout::Any;
  Place::Kind placeAfter = Place::Whole;
  Layout orderAfter = Layout::Any;
};
std::span<const Move> allMoves();

/// One collective.
struct Moving {
  OpKind kind = OpKind::AllGather;
  std::vector<uint16_t> axes; ///< of its group, outermost first
  int64_t by = 0;             ///< of a shift
  bool isAverage = false;     ///< its sums are divided by the number of members
};

/// Applies rows to values of a mesh. Refers to both, which must outlive it.
class Mover {
public:
  Mover(const Mesh &mesh, std::span<const Move> rows) : mesh_(mesh), rows_(rows) {}
  /// The value after the collective. Refused, with why(), if no row takes it.
  State moved(const Moving &how, State x);
  /// Why the last call was refused; empty if it was not.
  const std::string &why() const { return why_; }
  /// This rank's part of a value in which the parts of the axes' members are outermost. Returns
  /// false if they are not.
  bool take(State &x, const std::vector<uint16_t> &axes) const;
  /// Whether the slices along these axes are not divided further along other context-parallel axes.
  bool isInnermostSlice(const State &state, const std::vector<uint16_t> &axes) const;

private:
  State movedAlong(const Moving &how, const State &x, const std::vector<uint16_t> &axes);
  bool shift(State &x, const std::vector<uint16_t> &axes, int64_t by) const;
  bool gather(const State &from, State &x, const std::vector<uint16_t> &axes) const;
  Refused refuse(std::string why) {
    why_ = std::move(why);
    return {};
  }

  const Mesh &mesh_;
  std::span<const Move> rows_;
  std::string why_;
};

} // namespace shardc::plan::spec
