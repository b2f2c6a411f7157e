// State of reverse-mode differentiation of a training body: what the rules of BackwardRules.def
// read and write. A parameter's gradient is one value into which later contributions accumulate. An
// activation's gradient is summed if the activation has several users.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/Builder.h"

namespace shardc::passes {

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

  /// Adds a result to the op that contributes to the gradient of `of`. If `of` is a parameter, the
  /// result is its gradient, into which later contributions accumulate. If it is an activation, the
  /// rule passes the result to settle().
  plan::ValueId contribute(plan::Op &op, plan::ValueId of);

  /// Makes `contribution` the gradient of an activation, or adds it to the sum so far. A
  /// contribution of another type, namely a sum of different ones, is first rounded to the
  /// activation's type.
  void settle(plan::ValueId of, plan::ValueId contribution);

  /// Removes and returns the gradient of an activation: the caller's op adds it to its own
  /// contribution.
  plan::ValueId take(plan::ValueId of);

  /// Appends an op whose only result contributes to the gradient of an activation or of a
  /// parameter, if that gradient is needed. The next two functions do the same for several
  /// activations, and for a parameter.
  void emitFor(plan::ValueId of, plan::Op op);
  /// Appends an op with one result per activation.
  void emitForEach(std::span<const plan::ValueId> of, plan::Op op);
  /// Appends an op whose only result contributes to the gradient of a parameter.
  void emitForParam(plan::ValueId of, plan::Op op);

  void append(plan::Op op) { plan::append(segment_, std::move(op)); }
  /// Replaces the current forward op.
  void replaceForward(plan::Op op);
  /// Adds to an op that replaces the forward op a result that contributes to a parameter's
  /// gradient. It becomes the first contribution, since the other ones are computed later.
  void contributeFirst(plan::Op &op, plan::ValueId of);

  /// The forward op that defines the value.
  plan::Op producerOf(plan::ValueId value) const;
  /// The same, or nothing for a live-in value.
  std::optional<plan::Op> findProducer(plan::ValueId value) const;
  /// Appends an op that recomputes a forward value.
  plan::ValueId makeAgain(plan::ValueId value, plan::Op op);
  /// Appends an op with one result of this name, which has the type of a forward value and is
  /// needed for gradients.
  plan::ValueId emitLike(plan::ValueId value, std::string name, plan::Op op);
  int64_t groupSize(int16_t group) const { return plan_.groupSize(group); }
  /// The op with the softmax statistics of this rank's vocabulary shard from which `vocab_loss` is
  /// computed.
  plan::Op statsOf(const plan::Op &loss) const;
  /// What gradients of the losses of tokens begin with: the weights of the loss of pairs that is
  /// made of them, else `mask`.
  plan::ValueId weightsOf(const plan::Op &loss, plan::ValueId mask) const;
  /// The views that split a value into pieces, of which `first` reads the first one.
  std::vector<plan::ValueId> piecesOf(const plan::Op &first) const;
  /// Appends a cast of a gradient.
  plan::ValueId castTo(plan::ValueId gradient, DType dtype);
  const plan::Type &typeOf(plan::ValueId value) const { return segment_.values[value].type; }
  const std::string &nameOf(plan::ValueId value) const { return segment_.values[value].name; }
  int64_t numelOf(plan::ValueId value) const { return segment_.values[value].type.numel(); }
  /// Whether a value was computed from parts of several ranks, or its gradient is a partial sum on
  /// each rank.
  bool isBetweenRanks(plan::ValueId value) const;

  /// An op that starts the gradients of the current loss, as its STARTS_GRADIENT row says. Its
  /// operands are those given, then the token count over all slices of the sequences if the loss
  /// divides by it, then the step state if that holds a loss scale. The caller appends the op, or
  /// replaces the loss by it.
  plan::Op start(std::initializer_list<plan::ValueId> operands, bool isAppended) const;

private:
  /// A loss op, where differentiation starts.
  struct Seed {
    uint32_t loss;        ///< index of the op
    plan::ValueId tokens; ///< the token count, or kNone if the loss does not divide by it
  };
  void findWanted();
  void findSeeds();
  /// The op that makes losses of pairs of these losses of tokens; null if there is none.
  const plan::Op *findPairs(const plan::Op &loss) const;
  /// The number of unmasked tokens, summed over the ranks that have slices of the same sequences.
  plan::ValueId countOf(plan::ValueId mask) const;
  void countBefore(Seed &seed);
  plan::ValueId stateAt(size_t index) const;
  plan::ValueId newGrad(plan::ValueId of);
  void applyRule(const plan::Op &op);

  const plan::Plan &plan_;
  plan::Segment &segment_;
  bool isScaled_;                    ///< there is a loss scale
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
