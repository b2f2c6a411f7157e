// Computes an op's results from values at placements: from its FACTORS row, and for a fused op from
// its lemma.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/FactorExtents.h"
#include "runtime/verify/spec/Rows.h"
#include "runtime/verify/spec/State.h"

namespace shardc::plan::spec {

/// A plan's mesh, as placements see it.
class Mesh {
public:
  explicit Mesh(const Plan &plan) : plan_(plan) {}

  int64_t size(uint16_t axis) const {
    return axis >= kPieceAxes ? axis - kPieceAxes : plan_.mesh[axis].size;
  }
  /// The axes of a group that have several coordinates; none of group -1.
  std::vector<uint16_t> axesOf(int group) const;
  std::vector<uint16_t> axesOf(GroupKind kind) const { return axesOf(groupOfKind(plan_, kind)); }
  /// Ranks that differ in these axes: a bit for each.
  int64_t members(uint64_t axes) const;
  int64_t members(const std::vector<uint16_t> &axes) const { return members(bitsOf(axes)); }
  static uint64_t bitsOf(const std::vector<uint16_t> &axes);
  /// Blocks of this rank's elements that lie before the dimension, of so many whole ones.
  int64_t localOuter(const State &state, int64_t outer, int except = -1) const;
  /// The reverse: of so many blocks here.
  int64_t wholeOuter(const State &state, int64_t outer) const;
  /// The shape if no axis had a shard of it.
  Type wholeOf(const State &state, Type type) const;
  std::string name(uint16_t axis) const {
    return axis >= kPieceAxes ? "pieces" : plan_.mesh[axis].name;
  }

private:
  const Plan &plan_;
};

struct Operand {
  const State *state = nullptr;
  const Type *type = nullptr; ///< of this rank's elements; null of what a lemma has in between
};

/// One plain or fused op.
struct Call {
  OpKind kind = OpKind::Add;
  std::vector<Attr> attrs;
  std::vector<uint16_t> group; ///< axes of the group in which a rank has an index
  std::vector<Operand> operands;
  std::vector<const Type *> results; ///< of this rank; null of what a lemma has in between
  DType between = DType::F32;        ///< the type of what a lemma has in between
  int64_t number = 0;                ///< of the term: what is no attribute
};

class Compute {
public:
  Compute(const Plan &plan, Terms &terms) : mesh_(plan), terms_(terms) {}

  /// The states of the results; nothing if the op may not take its operands so, and why() says
  /// why.
  std::optional<std::vector<State>> apply(const Call &call);
  /// Evaluations may load other microbatches.
  TermId loaded(int64_t result) const { return terms_.of(Term::Loaded, result + loads_); }
  void setLoads(int64_t loads) { loads_ = loads; }
  /// Without its lemma.
  std::optional<std::vector<State>> applyPlain(const Call &call);
  /// a + b: of one microbatch, or sums over microbatches.
  std::optional<State> added(const State &a, const State &b);
  std::optional<State> addedPiece(const State &a, const State &b);
  const std::string &why() const { return why_; }
  /// Whether that is certainly something else than the model's.
  bool isDifferent() const { return isDifferent_; }
  const Mesh &mesh() const { return mesh_; }

private:
  friend class PlainCall;
  std::optional<std::vector<State>> unfold(const Lemma &lemma, const Call &call);
  bool refuse(std::string why, bool isDifferent = false) {
    why_ = std::move(why), isDifferent_ = isDifferent;
    return false;
  }

  Mesh mesh_;
  Terms &terms_;
  int64_t loads_ = 0; ///< of the segment under way: what is added to numbers of loaded values
  std::string why_;
  bool isDifferent_ = false;
};

/// The contributions of a value: its own of its microbatch, or those of the sum that it is.
std::vector<Contribution> contributionsOf(const Terms &terms, const State &state);

} // namespace shardc::plan::spec
