// The meaning of a value in a placed plan: a logical value at a placement.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "runtime/verify/spec/Terms.h"

namespace shardc::plan::spec {

/// How a value is distributed among the ranks along one mesh axis. Along an axis without a Place,
/// each rank has the whole value.
struct Place {
  enum Kind : uint8_t {
    Shard,    ///< each rank has a part of the elements: see `outer`
    Part,     ///< the whole is the sum over the ranks (partial sums)
    Largest,  ///< the whole is the maximum over the ranks
    Instance, ///< each rank has the value of its own samples
    Summed,   ///< each rank has the sum over the samples of all ranks
    Whole,    ///< each rank has the whole of the rows that `rows` says
  };
  /// The tokens of which a value has rows, or counts of rows.
  enum Rows : uint8_t {
    Any,   ///< it does not depend on the rank
    Own,   ///< this rank's share of the tokens; of other samples, the kind is Instance
    Taken, ///< the tokens of all ranks, for which the router chose this rank's experts
    All,   ///< the tokens of all ranks, which have been gathered
  };
  uint16_t axis = 0;
  Kind kind = Shard;
  /// For a Shard: the product of the whole extents before the divided dimension, so that the whole
  /// is [outer, n, …] for n ranks. If a dimension is divided twice, the second `outer` includes the
  /// first n. For rows that are Taken: the number of parts into which earlier axes divide experts.
  int64_t outer = 1;
  /// For a Shard: if true, rank i has chunks i and 2n-1-i of 2n chunks; otherwise it has the i-th
  /// of n.
  bool isMirrored = false;
  int64_t distance = 0;     ///< for a Shard: how far ops `shift` have moved it around the group
  bool isOfSeveral = false; ///< `distance` counts members of a group of several axes
  Rows rows = Any;
  bool isSummed = false; ///< of a Shard: it is summed over the samples of all ranks
  bool operator==(const Place &) const = default;
};

/// The place for messages, as in "takes a shard".
std::string_view wordOf(const Place &place);

/// The order of elements in memory: this rank's elements [outer, inner, …] are stored as [inner,
/// outer, …]. In the order of dimensions, `inner` is 1.
struct Order {
  int64_t outer = 1, inner = 1;
  /// A bit for each axis along which `inner` counts members of mirrored shards; see
  /// Place::isMirrored. Each member has its two chunks side by side.
  uint64_t slices = 0;
  bool isOfDims() const { return inner == 1; }
  bool operator==(const Order &) const = default;
};

/// A value is over/under times its term, in lowest terms. An average over n ranks divides by n.
struct Multiple {
  int64_t over = 1, under = 1;
  /// The ratio with the smallest `under`, at most `underMax`; empty if none equals the number.
  static std::optional<Multiple> of(double number, int64_t underMax);
  bool isOne() const { return over == under; }
  int64_t times(int64_t number) const { return number * over / under; }
  int64_t dividing(int64_t number) const { return number * under / over; }
  void multiply(const Multiple &by) {
    int64_t common = std::gcd(over * by.over, under * by.under);
    over = over * by.over / common, under = under * by.under / common;
  }
  void multiply(int64_t by) { multiply(Multiple{by, 1}); }
  void divide(int64_t by) { multiply(Multiple{1, by}); }
  bool operator==(const Multiple &) const = default;
};

/// The same term in microbatches `first` to `last`, as part of a sum.
struct Contribution {
  TermId term = kNoTerm;
  int64_t first = 0, last = 0;
  auto operator<=>(const Contribution &) const = default;
};

/// Axes from this number on are not axes of the mesh. Axis kPieceAxes + n stands for n equal
/// slices. A rank computes a value in pieces of one or several slices, one after the other.
inline constexpr uint16_t kPieceAxes = 0x4000, kPiecesMax = 0xb000;

/// Which parts of the whole a value contains so far: the slices that ring attention has processed,
/// or the pieces that have been computed.
struct Cover {
  int axis = -1;            ///< axis of the slices or pieces; -1: the value contains everything
  std::vector<bool> slices; ///< by slice or piece: whether the value contains it
  /// For a sum: the contributions of which only some pieces have been added.
  std::vector<Contribution> of;
  bool isAll() const { return axis < 0; }
  bool isPiece() const { return axis >= kPieceAxes; }
  bool operator==(const Cover &) const = default;
};

/// How the elements of a value are distributed among ranks and ordered in memory.
struct Placement {
  std::vector<Place> places; ///< by axis
  Order order;
  Multiple multiple;
  Cover cover;
  int64_t copies = 1; ///< how often the value stands there, one after the other
  Type whole;         ///< shape of the whole value; rank 0 if it is not known
  bool operator==(const Placement &) const = default;
};

inline constexpr uint64_t bitOf(uint16_t axis) { return uint64_t{1} << axis; }

/// What is known about one value of the plan: which value of the model it is, and its placement.
/// Copies share their placement until one of them is edited.
class State {
public:
  TermId term = kNoTerm;
  int64_t microbatch = -1;       ///< -1: of no microbatch, or a sum over several
  std::vector<Contribution> sum; ///< if not empty, the value is their sum and has no term

  const Placement *operator->() const { return placement_ ? placement_.get() : &kNowhere; }
  Placement &edit();
  bool isPlacedAs(const State &other) const {
    return placement_ == other.placement_ || *operator->() == *other.operator->();
  }
  bool operator==(const State &other) const {
    return term == other.term && microbatch == other.microbatch && sum == other.sum &&
           isPlacedAs(other);
  }

  bool isSum() const { return !sum.empty(); }
  const Place *at(uint16_t axis) const {
    for (const Place &place : (*this)->places)
      if (place.axis == axis)
        return &place;
    return nullptr;
  }
  bool is(uint16_t axis, Place::Kind kind) const { return at(axis) && at(axis)->kind == kind; }
  /// Whether the value has gathered rows of all ranks along some axis.
  bool hasRowsOfAll() const {
    return std::ranges::find((*this)->places, Place::All, &Place::rows) != (*this)->places.end();
  }
  void put(const Place &place);
  void remove(uint16_t axis) {
    if (at(axis) != nullptr)
      std::erase_if(edit().places, [&](const Place &place) { return place.axis == axis; });
  }

private:
  static const Placement kNowhere;
  std::shared_ptr<Placement> placement_;
};

/// A flat buffer of a block: one state for each of its parameters, in the order of the plan's
/// table.
struct BlockState {
  int32_t block = -1;
  std::vector<State> params;
  std::vector<uint16_t> axes; ///< axes along which the buffer is divided, outermost first
  /// Axes along which ranks have parts of its matrices: the buffer has theirs one after the other.
  std::vector<uint16_t> joined;
  bool operator==(const BlockState &) const = default;
};

/// Sums of losses and tokens over microbatches.
struct LossSums {
  int64_t begun = -1, finished = -1; ///< number of the step that began or finished them; -1: none
  struct Of {
    State loss, tokens;          ///< `tokens`: their number
    int64_t first = 0, last = 0; ///< microbatches
    bool operator==(const Of &) const = default;
  };
  std::vector<Of> losses;
  bool operator==(const LossSums &) const = default;
};

/// The content of a cell for the step state.
struct StepState {
  LossSums training, evaluation;
  LossSums &sums(bool isEval) { return isEval ? evaluation : training; }
  const LossSums &sums(bool isEval) const { return isEval ? evaluation : training; }
  bool operator==(const StepState &) const = default;
};

/// Amaxes of tensors, by slot or by the number of a weight's scale. Each entry has the value whose
/// amax it is, and the placement of that value.
struct Maxima {
  enum Kind : uint8_t {
    Seen,     ///< amaxes that the current step has recorded so far
    Expected, ///< amaxes of earlier steps, by which a step scales
    History,  ///< amaxes of earlier steps, from which Expected follows
    Weights,  ///< amaxes of weights
    Scales,   ///< the scales that follow from Weights
  } kind = Seen;
  int64_t step = 0; ///< for Expected and History: the next step
  struct Entry {
    State of;
    int64_t count = 1;              ///< number of slots from this one on; several for experts
    std::vector<Contribution> seen; ///< microbatches whose amaxes it includes; of weights: none
    bool operator==(const Entry &) const = default;
  };
  std::map<int64_t, Entry> entries;
  bool operator==(const Maxima &) const = default;
};

/// The content of a value or cell during the walk. `kind` says which member holds it.
struct Value {
  enum Kind : uint8_t {
    Unknown, ///< nothing is known
    Host,    ///< written by the host
    One,     ///< a value of the model: `state`
    Block,   ///< a buffer of parameters: `block`
    Step,    ///< the step state: `step`
    Squares, ///< the sum of squares of `list`
    Packed,  ///< a step's sums on this rank: `step`
    Reduced, ///< a step's sums over all ranks: `step`
    Largest, ///< amaxes: `maxima`
  } kind = Unknown;
  State state;
  std::shared_ptr<const BlockState> block;
  std::shared_ptr<const StepState> step;
  std::shared_ptr<const Maxima> maxima;
  const Op *op = nullptr; ///< for Squares their sum_squares, for Packed and Reduced their step.pack
  std::shared_ptr<const std::vector<Value>> list; ///< of the sum_squares: its operands

  Value(Kind kind_ = Unknown) : kind(kind_) {}
  Value(State is) : kind(One), state(std::move(is)) {}
  Value(BlockState is) : kind(Block), block(std::make_shared<const BlockState>(std::move(is))) {}
  Value(StepState is) : kind(Step), step(std::make_shared<const StepState>(std::move(is))) {}
  Value(Maxima is) : kind(Largest), maxima(std::make_shared<const Maxima>(std::move(is))) {}
  bool isOne() const { return kind == One; }
  bool isBlock() const { return kind == Block; }
  bool operator==(const Value &other) const;
};
using Values = std::vector<Value>;

/// Whether the value is the same part of the same block.
inline bool isPartOf(const Value &value, const BlockState &block) {
  return value.isBlock() && value.block->block == block.block && value.block->axes == block.axes;
}

/// Adds contributions to a sum. Returns false, and adds none, if the sum already contains one.
bool addContributions(std::vector<Contribution> &to, const std::vector<Contribution> &more);

} // namespace shardc::plan::spec
