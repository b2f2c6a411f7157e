// How collectives change placements: the MOVE rows of Spec.def, and how they apply to a value.
#pragma once

#include "runtime/verify/spec/Compute.h"

namespace shardc::plan::spec {

enum class Layout : uint8_t { Any, Dims, Outermost };

/// What a value is along an axis, as MOVE rows name it.
struct Form {
  Place::Kind kind = Place::Whole;
  Place::Rows rows = Place::Any;
  bool operator==(const Form &) const = default;
};
namespace form {
inline constexpr Form Whole, Shard = {Place::Shard}, Part = {Place::Part},
                             Largest = {Place::Largest}, Instance = {Place::Instance},
                             Summed = {Place::Summed}, Own = {Place::Whole, Place::Own},
                             Taken = {Place::Whole, Place::Taken}, All = {Place::Whole, Place::All},
                             PartOfAll = {Place::Part, Place::All};
} // namespace form

/// A MOVE row. `Own` also stands for Instance: rows of samples that other ranks do not have.
struct Move {
  OpKind kind = OpKind::AllGather;
  Form place;
  Layout order = Layout::Any;
  Form placeAfter;
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
  Mover(const Mesh &mesh, std::span<const Move> rows)
      : mesh_(mesh), rows_(rows), dataAxes_(mesh.axesOf(GroupKind::Data)) {}
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
  void put(State &x, uint16_t axis, Form form, int64_t outer) const;
  bool shift(State &x, const std::vector<uint16_t> &axes, int64_t by) const;
  bool gather(const State &from, State &x, const std::vector<uint16_t> &axes) const;
  Refused refuse(std::string why) {
    why_ = std::move(why);
    return {};
  }

  const Mesh &mesh_;
  std::span<const Move> rows_;
  std::vector<uint16_t> dataAxes_; ///< along which ranks have other samples
  std::string why_;
};

} // namespace shardc::plan::spec
