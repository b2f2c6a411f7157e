// The meaning of a value in a placed plan: a logical value at a placement.
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

/// How a value is distributed among the ranks along one mesh axis. Along an axis without a Place,
/// each rank has the whole value.
struct Place {
  enum Kind : uint8_t {
    Shard,     ///< each rank has a part: see `outer`
    Part,      ///< each rank has a summand of a sum
    Largest,   ///< the whole is the maximum over the ranks
    Instance,  ///< each rank has the value of its own samples
    Summed,    ///< the sum over the instances
    OwnRuns,   ///< rows of experts, in runs of each one's share of the rows
    Routed,    ///< each has the rows of all that are for its experts
    OfExperts, ///< each has its experts', summed over the rows of all
  };
  uint16_t axis = 0;
  Kind kind = Shard;
  /// For a Shard: if true, rank i has chunks i and 2n-1-i of 2n chunks; otherwise it has the i-th
  /// of n.
  bool isMirrored = false;
  /// For Routed: it was OwnRuns before the exchange; otherwise it was Instance.
  bool wasOwnRuns = false;
  /// For a Shard: the number of blocks before the divided dimension, in whole extents, so that the
  /// whole is [outer, n, …]. If a dimension is divided twice, the second `outer` includes the first
  /// n.
  int64_t outer = 1;
  int64_t distance = 0;     ///< of a Shard: how many members on it came from, around the group
  bool isOfSeveral = false; ///< the group has several axes, each of which has its distance
  bool operator==(const Place &) const = default;
};

/// The order of elements in memory, if it is not the order of dimensions.
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
  int64_t times(int64_t number) const { return number * over / under; }
  int64_t dividing(int64_t number) const { return number * under / over; }
  void multiply(int64_t by) {
    over *= by;
    divide(1);
  }
  void multiply(const Multiple &by) {
    multiply(by.over);
    divide(by.under);
  }
  void divide(int64_t by) {
    under *= by;
    int64_t common = std::gcd(over, under);
    over /= common, under /= common;
  }
  bool operator==(const Multiple &) const = default;
};

/// The same term in microbatches `first` to `last`, as part of a sum.
struct Contribution {
  TermId term = kNoTerm;
  int64_t first = 0, last = 0;
  auto operator<=>(const Contribution &) const = default;
};

/// Axes from here on are not mesh axes but pieces that a rank computes one after the other.
/// kPieceAxes + n stands for n equal slices; a piece has one or several of them.
inline constexpr uint16_t kPieceAxes = 0x4000, kPiecesMax = 0x3fff;

/// The slices that ring attention has processed so far, or the piece of a whole that the value is.
/// Axis -1: everything.
struct Cover {
  int axis = -1;
  std::vector<bool> slices;
  /// For a sum: the contributions that have only some of their pieces.
  std::vector<Contribution> of;
  bool isAll() const { return axis < 0; }
  bool isPiece() const { return axis >= kPieceAxes; }
  bool operator==(const Cover &) const = default;
};

/// How ranks have a value, and the order of its elements.
struct Placement {
  std::vector<Place> places; ///< by axis
  Order order;
  Multiple multiple;
  Cover cover;
  uint64_t slots = 0; ///< a bit for each axis: rows of experts with a slot of each rank along it
  /// A bit for each axis: of the samples of all ranks along it, one after the other.
  uint64_t pooled = 0;
  int64_t copies = 1; ///< the value stands so often, one after the other
  Type whole;         ///< its shape if it were whole; rank 0 where it is not known
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

/// A flat buffer of a block: one state for each of its parameters, in the order of the plan's
/// table.
struct BlockState {
  int32_t block = -1;
  std::vector<State> params;
  std::vector<uint16_t> axes; ///< axes along which the buffer is divided, outermost first
  bool operator==(const BlockState &) const = default;
};

/// Sums of losses and tokens. `microbatches` has the first and last microbatch of each.
struct LossSums {
  int64_t begun = -1, finished = -1; ///< the step of the walk, or -1
  std::vector<std::pair<State, State>> losses;
  std::vector<std::pair<int64_t, int64_t>> microbatches; ///< of each one
  bool operator==(const LossSums &) const = default;
};

struct StepState {
  LossSums training, evaluation;
  LossSums &sums(bool isEval) { return isEval ? evaluation : training; }
  const LossSums &sums(bool isEval) const { return isEval ? evaluation : training; }
  bool operator==(const StepState &) const = default;
};

/// Amaxes of tensors, by slot or by the number of a weight's scale. Each entry has the value whose
/// amax it is, and how ranks have parts of that value.
struct Maxima {
  enum Kind : uint8_t {
    Seen,     ///< amaxes by which a step scales
    Expected, ///< amaxes recorded in earlier steps
    History,  ///< histories of the steps before a step
    Weights,  ///< amaxes of weights
    Scales,   ///< numbers by which weights are multiplied
  } kind = Seen;
  int64_t step = 0; ///< for Expected and History: the next step
  struct Entry {
    State of;
    int64_t first = 0, last = 0;
    int64_t count = 1; ///< number of slots from this one on; several for experts
    bool operator==(const Entry &) const = default;
  };
  std::map<int64_t, Entry> entries;
  bool operator==(const Maxima &) const = default;
};

struct Value {
  enum Kind : uint8_t {
    Unknown,    ///< nothing is known
    Unreported, ///< not followed: a run only prints it
    Host,       ///< from the host
    One,        ///< `state`
    Block,
    Step,
    Squares, ///< sum of squares of the values that `op` lists
    Packed,  ///< a step's sums on this rank
    Reduced, ///< a step's sums over all ranks
    Largest, ///< `maxima`
  } kind = Unknown;
  State state;
  std::shared_ptr<const BlockState> block;
  std::shared_ptr<const StepState> step;
  std::shared_ptr<const Maxima> maxima;
  const Op *op = nullptr; ///< for Squares their sum_squares, for Packed and Reduced their step.pack
  std::shared_ptr<const std::vector<Value>> list; ///< of the sum_squares: its operands

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

/// Adds contributions, which must not be there yet; false if one is.
bool addContributions(std::vector<Contribution> &to, const std::vector<Contribution> &more);

} // namespace shardc::plan::spec
