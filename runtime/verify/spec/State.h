// The meaning of a value of a placed plan: a logical value at a placement.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/verify/spec/Terms.h"

namespace shardc::plan::spec {

/// Where the ranks along one axis of the mesh have a value. An axis that is not named has the whole
/// value on each of its ranks.
struct Place {
  enum Kind : uint8_t {
    Shard,     ///< each has a part: see `outer`
    Part,      ///< each has a part of a sum
    Largest,   ///< the whole is the largest of what they have
    Instance,  ///< each has that of its own samples
    Summed,    ///< the sum over the instances
    OwnRuns,   ///< rows of experts, in runs of each one's share of the rows
    Routed,    ///< each has the rows of all that are for its experts
    OfExperts, ///< each has its experts', summed over the rows of all
  };
  uint16_t axis = 0;
  Kind kind = Shard;
  /// Of a Shard: each has the chunks i and 2n-1-i of 2n, else the i-th of n.
  bool isMirrored = false;
  bool wasOwnRuns = false; ///< of Routed: before the rows were exchanged, else Instance
  /// Of a Shard: blocks of whole extents that lie before the dimension which is cut, so that the
  /// whole is [outer, n, …]. A second cut of one dimension has the first one's n in it.
  int64_t outer = 1;
  int64_t distance = 0;     ///< of a Shard: how many members on it came from, around the group
  bool isOfSeveral = false; ///< the group has several axes, each of which has its distance
  bool operator==(const Place &) const = default;
};

/// The order of elements, where it is not that of the dimensions.
struct Order {
  enum Kind : uint8_t {
    Dims,
    Gathered,   ///< [n, outer, …]: as shards of the members of some axes came
    Transposed, ///< [inner, outer, …] of [outer, inner, …], of the elements here
  } kind = Dims;
  uint64_t axes = 0;       ///< of Gathered: a bit for each
  bool isMirrored = false; ///< of Gathered
  int64_t outer = 1, inner = 1;
  bool operator==(const Order &) const = default;
};

struct Multiple {
  int64_t over = 1, under = 1;
  bool isOne() const { return over == under; }
  void multiply(int64_t by) {
    over *= by;
    divide(1);
  }
  void divide(int64_t by) {
    under *= by;
    int64_t common = std::gcd(over, under);
    over /= common, under /= common;
  }
  bool operator==(const Multiple &) const = default;
};

/// A term of microbatches `first` to `last` in a sum.
struct Contribution {
  TermId term = kNoTerm;
  int64_t first = 0, last = 0;
  auto operator<=>(const Contribution &) const = default;
};

/// Axes from here on are no axes of the mesh, but pieces that are computed one after the other: so
/// many as the number is greater.
inline constexpr uint16_t kPieceAxes = 0x4000, kPiecesMax = 0x3fff;

/// Which slices of a ring attention has seen so far, or which pieces it is; of no axis: all.
struct Cover {
  int axis = -1;
  std::vector<bool> slices;
  std::vector<Contribution> of; ///< of a sum: those that it has some pieces of
  bool isAll() const { return axis < 0; }
  bool isPiece() const { return axis >= kPieceAxes; }
  bool operator==(const Cover &) const = default;
};

/// Where ranks have a value, and how its elements lie there.
struct Placement {
  std::vector<Place> places; ///< by axis
  Order order;
  Multiple multiple;
  Cover cover;
  uint64_t slots = 0; ///< a bit for each axis: rows of experts with a slot of each rank along it
  /// A bit for each axis: of the samples of all ranks along it, one after the other.
  uint64_t pooled = 0;
  Type whole; ///< its shape if it were whole; rank 0 where it is not known
  bool operator==(const Placement &) const = default;
};

inline constexpr uint64_t bitOf(uint16_t axis) { return uint64_t{1} << axis; }

/// Copies share their placement until one of them is edited.
class State {
public:
  TermId term = kNoTerm;
  int64_t microbatch = -1;       ///< -1: of none, or of a sum that grows by microbatches
  std::vector<Contribution> sum; ///< not empty: it is their sum, and `term` says nothing

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
  void put(const Place &place);
  void remove(uint16_t axis) {
    if (at(axis) != nullptr)
      std::erase_if(edit().places, [&](const Place &place) { return place.axis == axis; });
  }

private:
  static const Placement kNowhere;
  std::shared_ptr<Placement> placement_;
};

/// A flat buffer with a state for each parameter of a block, in the order of the plan's table.
struct BlockState {
  int32_t block = -1;
  std::vector<State> params;
  std::vector<uint16_t> axes; ///< along which the buffer is divided, the outermost first
  bool operator==(const BlockState &) const = default;
};

/// Losses and tokens that were added, each of microbatches `first` to `last`.
struct LossSums {
  int64_t begun = -1, finished = -1; ///< in which step of the walk
  std::vector<std::pair<State, State>> losses;
  std::vector<std::pair<int64_t, int64_t>> microbatches; ///< of each of them
  bool operator==(const LossSums &) const = default;
};

struct StepState {
  LossSums training, evaluation;
  LossSums &sums(bool isEval) { return isEval ? evaluation : training; }
  const LossSums &sums(bool isEval) const { return isEval ? evaluation : training; }
  bool operator==(const StepState &) const = default;
};

/// Amaxes of tensors, by slot or by the number of a weight's scale: each has what it is
/// the amax of, and where ranks have parts of that.
struct Maxima {
  enum Kind : uint8_t {
    Seen,     ///< of the tensors of a step, in microbatches `first` to `last`
    Expected, ///< that a step expects tensors to have
    History,  ///< of the steps before a step
    Weights,  ///< of weights
    Scales,   ///< that weights are to be multiplied by
  } kind = Seen;
  int64_t step = 0; ///< of Expected and History: that comes next
  struct Entry {
    State of;
    int64_t first = 0, last = 0;
    int64_t count = 1; ///< of slots from this one on: those of experts
    bool operator==(const Entry &) const = default;
  };
  std::map<int64_t, Entry> entries;
  bool operator==(const Maxima &) const = default;
};

struct Value {
  enum Kind : uint8_t {
    Unknown,    ///< nothing is known of it
    Unreported, ///< not followed: it is for what a run prints
    Host,       ///< from the host
    One,        ///< `state`
    Block,
    Step,
    Squares, ///< of what `op` lists
    Packed,  ///< the sums of a step on this rank
    Reduced, ///< on all ranks
    Largest, ///< `maxima`
  } kind = Unknown;
  State state;
  std::shared_ptr<const BlockState> block;
  std::shared_ptr<const StepState> step;
  std::shared_ptr<const Maxima> maxima;
  const Op *op = nullptr; ///< of Squares, Packed and Reduced: the sum_squares
  std::shared_ptr<const std::vector<Value>> list; ///< of Squares: its operands

  bool isOne() const { return kind == One; }
  bool isBlock() const { return kind == Block; }
  bool operator==(const Value &other) const;

  static Value of(State state) {
    Value value;
    value.kind = One;
    value.state = std::move(state);
    return value;
  }
  static Value of(BlockState state) {
    Value value;
    value.kind = Block;
    value.block = std::make_shared<const BlockState>(std::move(state));
    return value;
  }
  static Value of(StepState state) {
    Value value;
    value.kind = Step;
    value.step = std::make_shared<const StepState>(std::move(state));
    return value;
  }
  static Value of(Maxima maxima) {
    Value value;
    value.kind = Largest;
    value.maxima = std::make_shared<const Maxima>(std::move(maxima));
    return value;
  }
  static Value ofKind(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
};

/// Adds contributions, which have to be others; false where one is twice.
bool addContributions(std::vector<Contribution> &to, const std::vector<Contribution> &more);

} // namespace shardc::plan::spec
