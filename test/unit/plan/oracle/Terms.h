// A term stands for one value of one rank when the oracle runs the steps of a plan without numbers.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "Facts.h"
#include "Pieces.h"
#include "Positions.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

class Members;
class Splits;

inline bool isAlias(const Op &op) { return op.kind == OpKind::View || op.kind == OpKind::Pack; }
inline bool isMeeting(const Op &op) {
  return op.kind == OpKind::AllGather || op.kind == OpKind::ReduceScatter ||
         op.kind == OpKind::AllReduce || op.kind == OpKind::AllReduceMax ||
         op.kind == OpKind::AllToAll || op.kind == OpKind::Shift;
}

/// Whether members have different results.
inline bool isApart(const Op &meeting) {
  return meeting.kind == OpKind::ReduceScatter || meeting.kind == OpKind::AllToAll;
}
inline bool isExchange(const Op &op) {
  return op.kind == OpKind::Shift || op.kind == OpKind::AllToAll || op.kind == OpKind::AllReduceMax;
}

/// One value of one rank in one run of a segment.
struct Term {
  int64_t rank = 0;
  const Op *op = nullptr;           ///< null: the value was loaded
  const Segment *segment = nullptr; ///< of the op
  uint32_t result = 0;
  int64_t run = -1;   ///< index in the rank's program
  int64_t batch = -1; ///< microbatch of the run; -1: none
  int64_t step = 0;
  int64_t numel = 0, begin = 0; ///< begin: first element of a view
  DType dtype = DType::F32;
  std::vector<int> from;  ///< terms of the operands
  std::vector<int> added; ///< terms to which the op adds
  int inPlaceOf = -1;
  const Cell *cell = nullptr; ///< the cell that a load or the host filled
  std::vector<int> members;   ///< for a collective: operands of all members, by position
  int64_t position = 0;
  bool isRead = false;
  bool isInPlace = false; ///< a gather that does not write this rank's part
  // For step states:
  bool isBegun = false;
  std::set<int64_t> losses; ///< microbatches whose losses are added
};

/// The operand of the member that sends to this member in a shift.
inline int shiftedFrom(const Term &shift) {
  auto members = static_cast<int64_t>(shift.members.size());
  int64_t from = (shift.position - shift.op->getInt(AttrKey::by) % members + members) % members;
  return shift.members[static_cast<size_t>(from)];
}

inline int32_t blockNamed(const Op &op) { return static_cast<int32_t>(op.getInt(AttrKey::block)); }

/// The begin and the number of elements of each part of a pack. The parts are the block's
/// parameters; without a block, they are the operands, one after the other, with these sizes.
inline std::vector<std::pair<int64_t, int64_t>> partsOfPack(const Plan &plan, const Op &pack,
                                                            const std::vector<int64_t> &sizes) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const Param &param : plan.params)
    if (blockNamed(pack) >= 0 && param.block == blockNamed(pack))
      parts.emplace_back(param.offset, param.type.numel());
  std::ranges::sort(parts);
  int64_t end = 0;
  for (size_t i = 0; i < sizes.size() && blockNamed(pack) < 0; end += sizes[i++])
    parts.emplace_back(end, sizes[i]);
  return parts;
}

/// Whether the term depends on the operand. Ops that quantize add to amaxes in place, on which
/// their other results do not depend.
inline bool dependsOn(const Term &term, size_t operand) {
  const OpInfo &info = opInfo(*term.op);
  auto shared = std::ranges::find(info.inPlace, static_cast<int8_t>(operand));
  return !factsOf(*term.op).seesAmaxes || shared == info.inPlace.end() ||
         static_cast<uint32_t>(shared - info.inPlace.begin()) == term.result;
}

/// A number for the op's kind and attributes, without operands.
inline Number numberOfAttrs(const Op &op) {
  Number number = mix(static_cast<Number>(op.kind), 7 + static_cast<Number>(op.epilogue));
  for (const Attr &attr : op.attrs)
    number = mix(mix(number, static_cast<Number>(attr.key)), static_cast<Number>(attr.i));
  return number;
}

/// A number for the content of a cell that a load or the host fills.
inline Number numberOfCell(const Cell *cell) {
  return cell == nullptr
             ? 0
             : mix(static_cast<Number>(cell->kind) + 1, static_cast<Number>(cell->of) + 1);
}

/// Whether a microbatch computes the term.
inline bool isContribution(const Term &term) {
  return term.op != nullptr && term.batch >= 0 && !isAlias(*term.op) && !isMeeting(*term.op) &&
         term.op->kind != OpKind::Cast && term.op->kind != OpKind::Snapshot &&
         term.op->kind != OpKind::Stage && term.op->kind != OpKind::Fill &&
         term.op->kind != OpKind::InitBlock;
}

// Records of ops that the program has executed.
struct Update {
  int64_t rank, step;
  int32_t block;
  std::vector<int> terms; ///< operands: gradient, state, step state, weights
  int64_t ordinal;        ///< number of the rank's earlier updates of the block
  size_t state;           ///< index of the step state in `terms`
};

struct Norm {
  int64_t rank, step;
  std::vector<std::pair<int, int32_t>> gradients; ///< terms and blocks
};

struct Site {
  std::vector<int> terms;
  bool isSeldom = false, isRepeated = false;
  int64_t rank = 0, run = 0;
};

struct Written {
  int64_t rank, run;
  Arena arena;
  int64_t begin, end;
};

/// Elements of a block from `begin` on.
struct Weights {
  int32_t block;
  int64_t begin;
};
/// The elements of a block's weights that a term has; empty for gradients, moments and activations.
/// All terms from which it is made must come before it, or meet in it.
std::optional<Weights> weightsOf(const Plan &plan, const Positions &positions,
                                 const std::vector<Term> &terms, int term);

/// Whether the term gathers split parameters of which its members have different elements.
bool joinsSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                 const std::vector<Term> &terms, const Term &term);
/// A number for the elements of split parameters in the term: 0 if it has none. A gather has the
/// number of all members' elements.
Number numberOfSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                      const std::vector<Term> &terms, int term);

/// Describes an op that computes with a parameter in another type than its table row has; empty if
/// there is none. All terms from which a term is made must come before it, or meet in it.
std::string findTypeBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms);

/// Whether the term is the squares of one parameter's gradient, made by a product.
bool isOfProduct(const Term &squares);
/// For squares from a reduction or a product, the gradient that was squared; for other terms, the
/// term itself.
int sumOf(const std::vector<Term> &terms, int term);

/// A block's gradients that optimizers, or a norm, take on all ranks.
struct Taken {
  bool isOfNorm;
  int64_t step;
  int32_t block;
  auto operator<=>(const Taken &) const = default;
};
using Gradients = std::map<Taken, std::set<Number>>; ///< their contributions
using PiecesOf = std::function<Pieces(int term)>;
/// Describes a block for which products squared other gradients than optimizers take, or squared
/// several or none for a parameter; empty if there is none. Adds the contributions of the squared
/// gradients to `gradients`.
std::string findSquareBreak(const Plan &plan, const std::vector<Term> &terms,
                            const std::vector<Update> &updates, const Norm &norm,
                            const PiecesOf &piecesOf, Gradients &gradients);
/// Rank and microbatch of each run that has made a contribution, and its term there.
using Makers = std::unordered_map<Number, std::map<std::pair<int64_t, int64_t>, int>>;

/// Describes a weight that is used for another number of rows than contribute to its gradient;
/// empty if there is none.
std::string findUseBreak(const Plan &plan, const Positions &positions,
                         const std::vector<Term> &terms, const Gradients &gradients,
                         const Makers &makers);

/// Describes an element of a gradient whose square does not occur exactly once in a norm; empty if
/// there is none.
std::string findNormBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms);

/// Describes two ranks that add different losses for the same tokens, or whose vocabulary-parallel
/// gradients of the same rows begin with different losses; empty if there are none. Two terms have
/// the same value if numberOf() gives them the same number.
std::string findLossBreak(const std::vector<Term> &terms, const Members &members,
                          const std::function<Number(int)> &numberOf);

} // namespace shardc::plan::oracle
