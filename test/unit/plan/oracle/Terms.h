// What stands for one value of one rank where the steps of a plan are run with terms in place of
// numbers.
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

/// Members have other results.
inline bool isApart(const Op &meeting) {
  return meeting.kind == OpKind::ReduceScatter || meeting.kind == OpKind::AllToAll;
}
inline bool isExchange(const Op &op) {
  return op.kind == OpKind::Shift || op.kind == OpKind::AllToAll || op.kind == OpKind::AllReduceMax;
}

/// One value of one rank, of one run of a segment.
struct Term {
  int64_t rank = 0;
  const Op *op = nullptr;           ///< null: a load filled it
  const Segment *segment = nullptr; ///< the op's
  uint32_t result = 0;
  int64_t run = -1;   ///< of the rank's program
  int64_t batch = -1; ///< microbatch of all that it was made in; -1: in none
  int64_t step = 0;
  int64_t numel = 0, begin = 0; ///< of a view: its first element
  DType dtype = DType::F32;
  std::vector<int> from;  ///< terms of its operands
  std::vector<int> added; ///< and of what it adds to
  int inPlaceOf = -1;
  const Cell *cell = nullptr; ///< that a load or the host filled
  std::vector<int> members;   ///< terms that meet in it, of all members, by their positions
  int64_t position = 0;
  bool isRead = false;
  bool isInPlace = false; ///< a gather that leaves this rank's part as it is
  // Of step states:
  bool isBegun = false;
  std::set<int64_t> losses; ///< microbatches
};

/// Of a shift, what another member had.
inline int shiftedFrom(const Term &shift) {
  auto members = static_cast<int64_t>(shift.members.size());
  int64_t from = (shift.position - shift.op->getInt(AttrKey::by) % members + members) % members;
  return shift.members[static_cast<size_t>(from)];
}

inline int32_t blockNamed(const Op &op) { return static_cast<int32_t>(op.getInt(AttrKey::block)); }

/// Where in its whole each part of a pack begins, and how many elements it has: the block's
/// parameters, or without a block the operands, of these sizes, one after the other.
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

/// Whether the term depends on its op's operand. Ops that quantise add what they see to amaxes
/// of other tensors, which nothing else that they make depends on.
inline bool dependsOn(const Term &term, size_t operand) {
  const OpInfo &info = opInfo(*term.op);
  auto shared = std::ranges::find(info.inPlace, static_cast<int8_t>(operand));
  return !factsOf(*term.op).seesAmaxes || shared == info.inPlace.end() ||
         static_cast<uint32_t>(shared - info.inPlace.begin()) == term.result;
}

/// Stands for what an op does, whatever it takes.
inline Number numberOfAttrs(const Op &op) {
  Number number = mix(static_cast<Number>(op.kind), 7 + static_cast<Number>(op.epilogue));
  for (const Attr &attr : op.attrs)
    number = mix(mix(number, static_cast<Number>(attr.key)), static_cast<Number>(attr.i));
  return number;
}

/// Stands for what a load fills, or the host writes.
inline Number numberOfCell(const Cell *cell) {
  return cell == nullptr
             ? 0
             : mix(static_cast<Number>(cell->kind) + 1, static_cast<Number>(cell->of) + 1);
}

/// What a microbatch computes.
inline bool isContribution(const Term &term) {
  return term.op != nullptr && term.batch >= 0 && !isAlias(*term.op) && !isMeeting(*term.op) &&
         term.op->kind != OpKind::Cast && term.op->kind != OpKind::Snapshot &&
         term.op->kind != OpKind::Stage && term.op->kind != OpKind::Fill &&
         term.op->kind != OpKind::InitBlock;
}

// What the program has done with terms.
struct Update {
  int64_t rank, step;
  int32_t block;
  std::vector<int> terms; ///< of its operands: gradient, state, step state, weights
  int64_t ordinal;        ///< among updates of the block on the rank
  size_t state;           ///< which of them is the step state
};

struct Norm {
  int64_t rank, step;
  std::vector<std::pair<int, int32_t>> gradients; ///< terms, blocks
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

/// Elements of a block from one on.
struct Weights {
  int32_t block;
  int64_t begin;
};
/// Of which block's weights a term has elements, if it is no gradient, moment or activation. All
/// that it was made of stands before it or meets in it.
std::optional<Weights> weightsOf(const Plan &plan, const Positions &positions,
                                 const std::vector<Term> &terms, int term);

/// Whether the term is a gather of what its members have of split parameters, each of other
/// elements.
bool joinsSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                 const std::vector<Term> &terms, const Term &term);
/// Stands for which elements of split parameters the term has: 0 for none, and for those of all
/// members of such a gather.
Number numberOfSplits(const Plan &plan, const Positions &positions, const Splits &splits,
                      const std::vector<Term> &terms, int term);

/// Where an op that computes takes a parameter in another type than the table of parameters gives
/// it: what is wrong, or nothing. Of each term, all that it was made of stands before it or meets
/// in it.
std::string findTypeBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms);

/// Whether a product has squared a gradient, of one parameter.
bool isOfProduct(const Term &squares);
/// The sum beside which a reduction or a product has made squares: of those, what they were taken
/// of; of others, the term itself.
int sumOf(const std::vector<Term> &terms, int term);

/// What optimizers, or a norm, take as the gradient of a block, on all ranks.
struct Taken {
  bool isOfNorm;
  int64_t step;
  int32_t block;
  auto operator<=>(const Taken &) const = default;
};
using Gradients = std::map<Taken, std::set<Number>>; ///< of which contributions they are the sum
using PiecesOf = std::function<Pieces(int term)>;
/// Where products have squared gradients for the norm, other ones than those that optimizers take
/// of the same blocks, or not each parameter's once: of which block, or nothing. Adds what they
/// have squared to the gradients.
std::string findSquareBreak(const Plan &plan, const std::vector<Term> &terms,
                            const std::vector<Update> &updates, const Norm &norm,
                            const PiecesOf &piecesOf, Gradients &gradients);
/// Which ranks have made a contribution, each in which microbatch, and the term there.
using Makers = std::unordered_map<Number, std::map<std::pair<int64_t, int64_t>, int>>;

/// Where a weight is used for more or fewer rows than its gradient has contributions of: which, or
/// nothing.
std::string findUseBreak(const Plan &plan, const Positions &positions,
                         const std::vector<Term> &terms, const Gradients &gradients,
                         const Makers &makers);

/// Where a norm has the square of an element of a gradient not once: which, or nothing.
std::string findNormBreak(const Plan &plan, const Positions &positions,
                          const std::vector<Term> &terms);

/// Where ranks have other losses of the same tokens, or begin gradients of columns of the same rows
/// with others: which, or nothing. `numberOf` is of a term.
std::string findLossBreak(const std::vector<Term> &terms, const Members &members,
                          const std::function<Number(int)> &numberOf);

/// Where a rank loads other slices than before, or begins gradients that it divides by the number
/// of other tokens than those of all slices of its sequences: which, or nothing.
std::string findTokenBreak(const std::vector<Term> &terms, const Members &members);

/// Where attention takes keys of one rank with what belongs to another one's, gradients do not go
/// back, or attention to some keys is used for that to all: what is wrong, or nothing.
std::string findOriginBreak(const std::vector<Term> &terms, const Members &members);

/// Where an op takes a product with a part of a weight, or rows of a part of a table, before ranks
/// have added theirs: which, or nothing.
std::string findPartialSumBreak(const Plan &plan, const Positions &positions,
                                const std::vector<Term> &terms);

/// Where an op takes rows of other tokens together, or ranks add such rows: which, or nothing.
std::string findRowBreak(const Positions &positions, const std::vector<Term> &terms);

/// Where a product takes a factor of 8 bits with another scale than its own: which, or nothing.
std::string findScaleBreak(const Plan &plan, const Positions &positions,
                           const std::vector<Term> &terms);

} // namespace shardc::plan::oracle
