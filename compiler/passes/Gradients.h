// The gradients of a training body while its backward ops are written: what the rules of
// BackwardRules.def read and write. A parameter's gradient is one value into which later
// contributions accumulate. An activation's gradient is summed if it has several users.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/plan/Builder.h"

namespace shardc::passes {

class Gradients {
public:
  Gradients(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment);

  /// Whether a body that is differentiated may hold the op.
  static bool hasRule(const plan::Op &op);

  /// Appends the backward ops of the segment, in reverse order.
  void write();

  /// Whether something that is trained needs the gradient of the value. Rules may offer others,
  /// which are dropped.
  bool isWanted(plan::ValueId value) const {
    return value >= isWanted_.size() || isWanted_[value] != 0;
  }

  /// The gradient of a value so far, or kNone: nothing that has a gradient reads it.
  plan::ValueId of(plan::ValueId value) const {
    return value < grads_.size() ? grads_[value] : plan::kNone;
  }

  // For rules. New ops have unit and place of the forward op.

  plan::Op makeOp(plan::OpKind kind, std::initializer_list<plan::ValueId> operands) const {
    return plan::makeOp(kind, operands, unit_, loc_);
  }

  /// Adds to the op a result that is one contribution to the gradient of `of`. If `of` is a
  /// parameter, the result is its gradient, and later contributions accumulate; if it is an
  /// activation, the rule hands the result to `settle`.
  plan::ValueId contribute(plan::Op &op, plan::ValueId of);

  /// Makes `contribution` the gradient of an activation, or adds it to the contributions so far.
  /// One of another type, that of a sum of different ones, is rounded to the activation's first.
  void settle(plan::ValueId of, plan::ValueId contribution);

  /// Takes the gradient of an activation away: the caller's op adds it to its contribution.
  plan::ValueId take(plan::ValueId of);

  /// Appends an op whose only result is a contribution to the gradient of an activation, or of a
  /// parameter, if it is wanted. The same holds for the next two.
  void emitFor(plan::ValueId of, plan::Op op);
  /// Appends an op with as many results, which are contributions to the gradients of activations.
  void emitForEach(std::span<const plan::ValueId> of, plan::Op op);
  /// Appends an op whose only result is a contribution to the gradient of a parameter.
  void emitForParam(plan::ValueId of, plan::Op op);

  void append(plan::Op op) { plan::append(segment_, std::move(op)); }
  /// Puts the op in the place of the forward op whose rule runs.
  void replaceForward(plan::Op op);
  /// Adds to an op that takes the place of the forward op a result that is a contribution to the
  /// gradient of a parameter: the first one, since those so far are made behind it.
  void contributeFirst(plan::Op &op, plan::ValueId of);

  /// The forward op that makes the value.
  plan::Op makerOf(plan::ValueId value) const;
  /// The same, or nothing if the segment begins with it.
  std::optional<plan::Op> findMaker(plan::ValueId value) const;
  /// Appends an op that makes a forward value once more.
  plan::ValueId makeAgain(plan::ValueId value, plan::Op op);
  /// Appends an op whose only result, of this name, has the type of a forward value, and is needed
  /// for gradients.
  plan::ValueId emitLike(plan::ValueId value, std::string name, plan::Op op);
  int64_t groupSize(int16_t group) const { return plan_.groupSize(group); }
  /// The statistics of this rank's columns from which `vocab_loss` is made.
  plan::Op statsOf(const plan::Op &loss) const;
  /// What the views of a value are that cut it into pieces, of which the op whose rule runs is the
  /// first one.
  std::vector<plan::ValueId> piecesOf(const plan::Op &first) const;
  /// Appends an op that rounds a gradient to another type.
  plan::ValueId castTo(plan::ValueId gradient, DType dtype);
  const plan::Type &typeOf(plan::ValueId value) const { return segment_.values[value].type; }
  const std::string &nameOf(plan::ValueId value) const { return segment_.values[value].name; }
  int64_t numelOf(plan::ValueId value) const { return segment_.values[value].type.numel(); }
  /// Whether a value was made from parts that ranks have, or each rank makes a part of its
  /// gradient.
  bool isBetweenRanks(plan::ValueId value) const;

  /// An op that starts the gradients of the loss whose rule runs, as its STARTS_GRADIENT row says:
  /// of these operands, the count of the loss' tokens over all slices of their sequences if it
  /// divides by one, and the step state if that has a loss scale for them. The op will be appended,
  /// or takes the loss' place.
  plan::Op start(std::initializer_list<plan::ValueId> operands, bool isAppended) const;

private:
  /// A loss, where gradients begin.
  struct Seed {
    uint32_t loss;        ///< index of the op
    plan::ValueId tokens; ///< their count, or kNone if it does not divide by it
  };
  void findWanted();
  void findSeeds();
  /// The count of the tokens that a mask lets count: of all ranks that have slices of their
  /// sequences, if these add their own.
  plan::ValueId countOf(plan::ValueId mask) const;
  void countBefore(Seed &seed);
  plan::ValueId stateAt(size_t index) const;
  plan::ValueId newGrad(plan::ValueId of);
  void applyRule(const plan::Op &op);

  const plan::Plan &plan_;
  plan::Segment &segment_;
  bool isScaled_;                    ///< the loss has a scale
  std::vector<plan::ValueId> grads_; ///< gradient of each forward value so far
  std::vector<int> contributions_;   ///< number of values created for it
  std::vector<int32_t> paramOf_;     ///< parameter whose content a value is, or -1
  std::vector<uint8_t> isWanted_;    ///< by forward value
  std::vector<Seed> seeds_;          ///< in order
  size_t index_ = 0;                 ///< of the forward op whose rule runs
  int32_t unit_ = -1;
  uint32_t loc_ = plan::kNone;
};

// The rules.
#define RULE(op) void back##op(Gradients &gradients, const plan::Op &op);
#include "compiler/passes/BackwardRules.def"

} // namespace shardc::passes
