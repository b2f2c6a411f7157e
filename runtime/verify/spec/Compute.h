// Computes which values of the model an op's results are, and their placements, from those of its
// operands. Plain ops follow their factors, fused ops the plain ops that are their steps.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/plan/FactorExtents.h"
#include "runtime/plan/Steps.h"
#include "runtime/verify/spec/Rows.h"
#include "runtime/verify/spec/State.h"

namespace shardc::plan::spec {

/// The plan's mesh, extended by axes of pieces (kPieceAxes).
class Mesh {
public:
  explicit Mesh(const Plan &plan) : plan_(plan) {}

  int64_t size(uint16_t axis) const {
    return axis >= kPieceAxes ? axis - kPieceAxes : plan_.mesh[axis].size;
  }
  /// The axes of a group with several coordinates; none for group -1.
  std::vector<uint16_t> axesOf(int group) const;
  std::vector<uint16_t> axesOf(GroupKind kind) const { return axesOf(groupOfKind(plan_, kind)); }
  /// The number of ranks that differ only in these axes (a bit for each).
  int64_t members(const std::vector<uint16_t> &axes) const;
  static uint64_t bitsOf(const std::vector<uint16_t> &axes);
  /// Into how many shards the axis divides the value, for each that this rank has: of a piece, this
  /// is the number of all slices over that of its own.
  Multiple shards(const State &state, uint16_t axis) const;
  /// Place::outer counts whole extents. Returns the same product for this rank's extents.
  int64_t localOuter(const State &state, int64_t outer) const;
  /// The reverse of localOuter(): the product of whole extents that belongs to a product `outer` of
  /// this rank's extents. With `isOfSlices`, mirrored shards do not count: they divide the
  /// dimension that begins there.
  int64_t wholeOuter(const State &state, int64_t outer, bool isOfSlices = false) const;
  /// The whole shape of a value of which this rank has a part of type `type`.
  Type wholeOf(const State &state, Type type) const;
  std::string name(uint16_t axis) const {
    return axis >= kPieceAxes ? "pieces" : plan_.mesh[axis].name;
  }

private:
  const Plan &plan_;
};

/// The shards of a value, outermost first.
std::vector<const Place *> cutsOf(const State &state);

inline bool contains(const std::vector<uint16_t> &axes, uint16_t axis) {
  return std::ranges::find(axes, axis) != axes.end();
}

inline bool hasRole(const OpFactors &factors, FactorId factor, FactorRole role) {
  return factor != kNoFactor && factors.roles[static_cast<size_t>(factor)] == role;
}

/// What refusing returns: false, or an empty value. What follows from it does not matter, since the
/// first refusal ends the comparison.
struct Refused {
  template <typename T> operator T() const { return T(); }
};

struct Operand {
  const State *state = nullptr;
  const Type *type = nullptr; ///< this rank's type; null for values between steps
};

/// One plain or fused op with its operands.
struct Call {
  OpKind kind = OpKind::Add;
  std::vector<Attr> attrs;
  std::vector<uint16_t> group; ///< axes of the group whose index the op uses
  std::vector<Operand> operands;
  std::vector<const Type *> results; ///< this rank's types; null for values between steps
  DType between = DType::F32;        ///< type of values between steps
  int64_t number = 0;                ///< part of the term that no attribute expresses
};

/// Computes results of ops. Refers to the mesh and adds to `terms`; both must outlive it.
class Compute {
public:
  Compute(const Mesh &mesh, Terms &terms) : mesh_(mesh), terms_(terms) {}

  /// The states of the results, whose number is that of the call. If the op cannot take operands at
  /// these placements, why() gives the reason.
  std::vector<State> apply(const Call &call);
  /// The term of a result of batch.load. Evaluations may load microbatches of another size, whose
  /// terms are distinguished by setLoads().
  TermId loaded(int64_t result) const { return terms_.of(Term::Loaded, result + loads_); }
  void setLoads(int64_t loads) { loads_ = loads; }
  /// a + b, for values of one microbatch or sums over microbatches. Refused, with why(), if the sum
  /// would add values with different placements, or one contribution twice.
  State added(const State &a, const State &b);
  /// Why the last call was refused; empty if it was not.
  const std::string &why() const { return why_; }

private:
  friend class PlainCall;
  std::vector<State> applyPlain(const Call &call);
  std::vector<State> unfold(const OpSteps &row, const Call &call);
  State addedPiece(const State &a, const State &b);
  State addedParts(const State &a, const State &b);
  Refused refuse(std::string why) {
    why_ = std::move(why);
    return {};
  }

  const Mesh &mesh_;
  Terms &terms_;
  int64_t loads_ = 0; ///< offset of the numbers of loaded values in the current segment
  std::string why_;
};

/// The contributions of a sum; for any other value, its own summands in its microbatch.
std::vector<Contribution> contributionsOf(const Terms &terms, const State &state);

} // namespace shardc::plan::spec
