// State of reverse-mode differentiation of a training body, which the rules of BackwardRules.def
// read and change. All contributions to a parameter's gradient accumulate into one value. The
// gradient of an activation with several users is the sum of their contributions.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// The gradients of one segment. Backward rules call it to read operands and to add contributions.
/// The segment must outlive it.
class Gradients {
public:
  Gradients(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment);

  /// Whether the op has a backward rule.
  static bool hasRule(const plan::Op &op);

  /// Appends the backward ops of the segment, in reverse order.
  void write();

  /// Whether a trained parameter needs the gradient of the value. Rules may compute unneeded
  /// gradients; they are dropped later.
  bool isWanted(plan::ValueId value) const {
    return value >= isWanted_.size() || isWanted_[value] != 0;
  }

  /// The gradient of a value so far; kNone if no user with a gradient reads the value.
  plan::ValueId of(plan::ValueId value) const {
    return value < grads_.size() ? grads_[value] : plan::kNone;
  }

  // The interface for backward rules. New ops inherit unit and location of the forward op.

  plan::Op makeOp(plan::OpKind kind, std::initializer_list<plan::ValueId> operands) const {
    return plan::makeOp(kind, operands, unit_, loc_);
  }

  /// Adds a result to the op: its contribution to the gradient of `of`. If `of` is a parameter, the
  /// result is its gradient, into which later contributions accumulate. If it is an activation, the
  /// rule must pass the result to settle().
  plan::ValueId contribute(plan::Op &op, plan::ValueId of);

  /// Makes `contribution` the gradient of an activation, or adds it to the sum so far. If an
  /// earlier contribution has another type, the sum is rounded to the activation's type.
  void settle(plan::ValueId of, plan::ValueId contribution);

  /// Removes and returns the gradient of an activation: the caller's op adds it to its own
  /// contribution.
  plan::ValueId take(plan::ValueId of);

  /// Appends an op whose only result contributes to the gradient of an activation or a parameter,
  /// if that gradient is needed.
  void emitFor(plan::ValueId of, plan::Op op);
  /// Appends an op with one result per activation or parameter.
  void emitForEach(std::span<const plan::ValueId> of, plan::Op op);
  /// Appends an op whose only result contributes to the gradient of a parameter.
  void emitForParam(plan::ValueId of, plan::Op op);

  void append(plan::Op op) { plan::append(segment_, std::move(op)); }
  /// Replaces the current forward op.
  void replaceForward(plan::Op op);
  /// Adds a result to an op that replaces the forward op. The result is the first contribution to a
  /// parameter's gradient, since all others are computed later.
  void contributeFirst(plan::Op &op, plan::ValueId of);

  /// The forward op that defines the value.
  plan::Op producerOf(plan::ValueId value) const;
  /// Like producerOf(), but empty for a live-in value.
  std::optional<plan::Op> findProducer(plan::ValueId value) const;
  /// Appends an op that recomputes a forward value.
  plan::ValueId makeAgain(plan::ValueId value, plan::Op op);
  /// Appends an op with one result of this name, which has the type of a forward value and is
  /// needed for gradients.
  plan::ValueId emitLike(plan::ValueId value, std::string name, plan::Op op);
  int64_t groupSize(int16_t group) const { return plan_.groupSize(group); }
  /// The op that computes the softmax statistics, over this rank's vocabulary shard, that `loss`
  /// reads.
  plan::Op statsOf(const plan::Op &loss) const;
  /// The factor of each token with which gradients of token losses start: the weights of the
  /// preference loss that is computed from these losses; if there is none, `mask`.
  plan::ValueId weightsOf(const plan::Op &loss, plan::ValueId mask) const;
  /// All views that split a value into pieces; the result of the first view is the operand of
  /// `first`.
  std::vector<plan::ValueId> piecesOf(const plan::Op &first) const;
  /// Appends a cast of a gradient.
  plan::ValueId castTo(plan::ValueId gradient, DType dtype);
  const plan::Type &typeOf(plan::ValueId value) const { return segment_.values[value].type; }
  const std::string &nameOf(plan::ValueId value) const { return segment_.values[value].name; }
  int64_t numelOf(plan::ValueId value) const { return segment_.values[value].type.numel(); }
  /// Whether a value was computed from parts of several ranks, or its gradient is a partial sum on
  /// each rank.
  bool isBetweenRanks(plan::ValueId value) const;

  /// Creates the op that starts the gradient of the current loss, as its STARTS_GRADIENT row says.
  /// Its operands are those given, then the token count over all slices of the sequences if the
  /// loss divides by it, then the step state if that holds a loss scale. The caller appends the op,
  /// or replaces the loss by it.
  plan::Op start(std::vector<plan::ValueId> operands, bool isAppended) const;

private:
  /// A loss op, where differentiation starts.
  struct Seed {
    uint32_t loss;        ///< index of the op
    plan::ValueId tokens; ///< the token count, or kNone if the loss does not divide by it
  };
  void findWanted();
  void findSeeds();
  /// The op that computes a preference loss from these token losses; null if there is none.
  const plan::Op *findPairs(const plan::Op &loss) const;
  /// The number of unmasked tokens, summed over the ranks that have slices of the same sequences.
  plan::ValueId countOf(plan::ValueId mask) const;
  void countBefore(Seed &seed);
  plan::ValueId stateAt(size_t index) const;
  plan::ValueId newGrad(plan::ValueId of);
  void applyRule(const plan::Op &op);

  const plan::Plan &plan_;
  plan::Segment &segment_;
  bool isScaled_;                    ///< whether there is a loss scale
  std::vector<plan::ValueId> grads_; ///< gradient of each forward value so far
  std::map<std::pair<plan::ValueId, DType>, plan::ValueId> casts_;
  std::vector<int> contributions_; ///< number of contributions, for names
  std::vector<int32_t> paramOf_;   ///< index of the parameter that a value holds, or -1
  std::vector<uint8_t> isWanted_;  ///< by forward value
  std::vector<Seed> seeds_;        ///< in order
  size_t index_ = 0;               ///< of the current forward op
  int32_t unit_ = -1;
  uint32_t loc_ = plan::kNone;
};

// The rules.
#define RULE(op) void back##op(Gradients &gradients, const plan::Op &op);
#include "compiler/passes/BackwardRules.def"

} // namespace shardc::passes
