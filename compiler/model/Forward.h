// Writes the forward ops of one microbatch into a segment, without optimising: one op for each step
// of the model's definition (Megatron-Core's GPTModel). Modules (Module.h) write through it.
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/plan/Builder.h"

namespace shardc::model {

/// Values that batch.load defines in a body.
struct Batch {
  plan::ValueId tokens = plan::kNone, labels = plan::kNone, mask = plan::kNone;
  plan::ValueId positions = plan::kNone, docs = plan::kNone, samples = plan::kNone;
  plan::ValueId reference = plan::kNone; ///< of pairs
};

/// Settings that all modules of a body share.
struct BodySettings {
  int64_t microBatch = 1, seqLength = 1;
  DType compute = DType::F32;  ///< of activations
  DType residual = DType::F32; ///< of the residual stream
  int64_t seed = 0;            ///< of dropout
  bool training = true;        ///< evaluation drops nothing
  int64_t positions = 0;       ///< of whole sequences, of which a body may have a part
  bool hasPairs = false;       ///< batches have a reference, and the loss is one of pairs
};

class Forward {
public:
  /// The role has a cell for each of the plan's parameters.
  Forward(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment,
          const BodySettings &settings);

  /// Ops written from now on belong to the unit. Its parameters' names begin with `paramPrefix`,
  /// its values' names with `valuePrefix`.
  void enter(int32_t unit, uint32_t loc, std::string paramPrefix, std::string valuePrefix);

  /// Sets the prefix of parameter names from now on. Returns the old one.
  std::string swapParamPrefix(std::string prefix) {
    return std::exchange(paramPrefix_, std::move(prefix));
  }

  /// Writes batch.load from the ring of `slots` entries that the cell holds.
  void loadBatch(uint32_t feedCell, int64_t slots, uint32_t loc);

  const BodySettings &settings() const { return settings_; }
  const Batch &batch() const { return batch_; }
  const plan::Type &typeOf(plan::ValueId value) const { return segment_.values[value].type; }
  /// Type of activations with these extents.
  plan::Type activations(std::initializer_list<int64_t> shape) const {
    return plan::Type::of(settings_.compute, shape);
  }

  /// The content of the unit's parameter, by the name that its module declared.
  plan::ValueId weight(const std::string &name);

  /// The name of a value of this unit.
  std::string name(const char *what) const { return valuePrefix_ + what; }

  plan::Op op(plan::OpKind kind, std::initializer_list<plan::ValueId> operands) const;
  /// Appends an op with one result. `name` is complete.
  plan::ValueId emit(plan::Op op, std::string name, const plan::Type &type);
  /// The same for a result whose valid rows `counts` gives.
  plan::ValueId emitRows(plan::Op op, std::string name, const plan::Type &type,
                         plan::ValueId counts);
  /// All elements of a value in another shape.
  plan::ValueId reshaped(plan::ValueId value, const char *what,
                         std::initializer_list<int64_t> shape);
  /// For values that are neither activations nor weights: row counts and positions.
  void setPurpose(plan::ValueId value, plan::Purpose purpose) {
    segment_.values[value].purpose = purpose;
  }
  /// Appends an op with several results, which are named within the unit.
  std::vector<plan::ValueId>
  emitMany(plan::Op op, const std::vector<std::pair<const char *, plan::Type>> &results);

  /// Writes dropout if this is training and p is not zero. Its result has the type of the residual
  /// stream, to which it is added.
  plan::ValueId dropout(plan::ValueId x, double p, const char *what);
  /// x multiplied by uniform numbers from 1 - jitter to 1 + jitter, in evaluation too; x if jitter
  /// is zero.
  plan::ValueId jittered(plan::ValueId x, double jitter, const char *what);
  /// Dropout on an adapter's operand, in its own type and with salts of its own, so that the
  /// model's masks are those without adapters.
  plan::ValueId adapterDropout(plan::ValueId x, double p, const char *what);
  /// x times the factor, which rows of x have the counts of; x if that is 1.
  plan::ValueId scaled(plan::ValueId x, double factor, const char *what);
  /// Gives a place in the model that draws random numbers its salt, and sets dropout of the op.
  void setDropout(plan::Op &op, double p);

  /// What the losses of the microbatch are divided by, f32[1]: how many tokens count in the head's
  /// loss, or how many pairs.
  plan::ValueId tokenCount = plan::kNone;
  /// The operand of the head, after the last norm; later the hidden state of the last predicted
  /// token so far.
  plan::ValueId hidden = plan::kNone;

  /// The number of the layer with experts that is written, counted from 0.
  int64_t nextExperts() { return experts_++; }
  /// The number of the multi-token prediction block, counted from 0.
  int64_t nextPrediction() { return predictions_++; }
  /// The bias f32[E] that is added to experts' scores when they are chosen; kNone if the model has
  /// none.
  plan::ValueId expertBias(int64_t layer, int64_t experts);
  /// Whether the body leaves sums of the step in such a cell.
  bool tallies(std::string_view cell) const;
  /// Adds scale times the rows of x, divided by n unless that is kNone, to row `slot` of the sums
  /// that the cell holds. Returns the sums so far, which the next ones take over.
  plan::ValueId tally(std::string_view cell, plan::ValueId x, int64_t slot, double scale,
                      plan::ValueId n = plan::kNone);
  /// Columns of the sums that the cell holds.
  int64_t columnsOf(std::string_view cell) const;
  /// The first elements of a row of a matrix.
  plan::ValueId row(plan::ValueId matrix, int64_t index, const plan::Type &type, const char *what);
  /// Leaves all such sums in their cells.
  void leaveTallies();
  /// The sum of a value over the members of a group.
  plan::ValueId summed(plan::ValueId value, const char *what, int16_t group);
  int16_t groupOf(plan::GroupKind kind) const { return plan::groupOfKind(plan_, kind); }
  int64_t membersOf(int16_t group) const { return plan_.groupSize(group); }
  /// A value that all members of a group have, as one takes it that makes a part of its gradient.
  plan::ValueId shared(plan::ValueId value, const char *what, int16_t group);
  /// Gathers the values of all members of a group, each a part of the rows, in the order of
  /// members. `counts` says how many rows of each part are valid; kNone: all.
  plan::ValueId exchanged(plan::ValueId value, const char *what, int16_t group,
                          plan::ValueId counts = plan::kNone);
  /// The rows of all members of a group, one member's behind the other's.
  plan::ValueId gathered(plan::ValueId value, const char *what, int16_t group,
                         plan::ValueId counts = plan::kNone);
  /// Sums the members' results for gathered rows, and keeps this member's rows of the sum.
  plan::ValueId scattered(plan::ValueId value, const char *what, int16_t group,
                          plan::ValueId counts);

private:
  /// The result of the collective on a value, with so many rows.
  plan::ValueId moved(plan::OpKind kind, plan::ValueId value, const char *what, int16_t group,
                      int64_t rows, plan::ValueId counts);

  /// A step's sums in a cell, as far as ops have been written for them.
  struct Sums {
    uint32_t cell;
    plan::ValueId value;
    bool isFirst = true; ///< as the microbatch finds them
  };

  const plan::Plan &plan_;
  const plan::Role &role_;
  plan::Segment &segment_;
  BodySettings settings_;
  Batch batch_;
  std::unordered_map<std::string, uint32_t> params_; ///< index of each parameter
  std::vector<uint32_t> cells_;                      ///< of each parameter
  std::vector<plan::ValueId> weights_; ///< live-in value of each parameter, kNone until used
  std::string paramPrefix_, valuePrefix_;
  int32_t unit_ = 0;
  uint32_t loc_ = plan::kNone;
  int64_t salt_ = 0, adapterSalt_ = 0, experts_ = 0, predictions_ = 0;
  plan::ValueId bias_ = plan::kNone; ///< of all layers with experts
  std::vector<Sums> sums_;
};

} // namespace shardc::model
