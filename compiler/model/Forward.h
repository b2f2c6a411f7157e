// Emits the forward ops of one microbatch into a segment, without optimising: one op for each step
// of the model's definition (Megatron-Core's GPTModel). Modules (Module.h) use it to emit ops.
#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <utility>

#include "runtime/plan/Builder.h"

namespace shardc::model {

// Names of plans that nearly all modules use.
using plan::Op;
using plan::OpKind;
using plan::Type;
using plan::ValueId;
using Key = plan::AttrKey;

/// Values that batch.load defines in a body.
struct Batch {
  plan::ValueId tokens = plan::kNone, labels = plan::kNone, mask = plan::kNone;
  plan::ValueId positions = plan::kNone, docs = plan::kNone, samples = plan::kNone;
  plan::ValueId reference = plan::kNone; ///< reference log-probabilities, if the batch has pairs
};

/// Settings that all modules of a body share.
struct BodySettings {
  int64_t microBatch = 1, seqLength = 1;
  DType compute = DType::F32;  ///< of activations
  DType residual = DType::F32; ///< of the residual stream
  int64_t seed = 0;            ///< of dropout
  bool training = true;        ///< in evaluation, dropout is off
  int64_t positions = 0;       ///< length of whole sequences; the body may have a slice of them
  bool hasPairs = false;       ///< batches have references, and the loss is a preference loss
};

/// Writes into a segment that must outlive it. Ops get the unit and recipe line of the last
/// enter().
class Forward {
public:
  /// The role must have a cell for each of the plan's parameters.
  Forward(const plan::Plan &plan, const plan::Role &role, plan::Segment &segment,
          const BodySettings &settings);

  /// The following ops belong to the unit. `paramPrefix`: prefix of its parameters' names.
  /// `valuePrefix`: prefix of its values' names.
  void enter(int32_t unit, uint32_t loc, std::string paramPrefix, std::string valuePrefix);

  /// Sets the prefix of parameter names for the following ops. Returns the old prefix.
  std::string swapParamPrefix(std::string prefix) {
    return std::exchange(paramPrefix_, std::move(prefix));
  }

  /// Emits batch.load from the cell's ring of `slots` entries.
  void loadBatch(uint32_t feedCell, int64_t slots, uint32_t loc);

  const BodySettings &settings() const { return settings_; }
  const Batch &batch() const { return batch_; }
  const plan::Type &typeOf(plan::ValueId value) const { return segment_.values[value].type; }
  /// The type of activations with this shape.
  plan::Type activations(std::initializer_list<int64_t> shape) const {
    return plan::Type::of(settings_.compute, shape);
  }

  /// The value of the unit's parameter that its module declared under this name.
  plan::ValueId weight(const std::string &name);

  /// The complete name of a value of this unit.
  std::string name(const char *what) const { return valuePrefix_ + what; }

  plan::Op op(plan::OpKind kind, std::initializer_list<plan::ValueId> operands) const;
  /// Appends an op with one result. `name` is the complete name.
  plan::ValueId emit(plan::Op op, std::string name, const plan::Type &type);
  /// Like emit(); only the rows that `counts` gives are used.
  plan::ValueId emitRows(plan::Op op, std::string name, const plan::Type &type,
                         plan::ValueId counts);
  /// A view of all elements of a value, with another shape.
  plan::ValueId reshaped(plan::ValueId value, const char *what,
                         std::initializer_list<int64_t> shape);
  /// Sets the purpose of a value that is neither an activation nor a weight: row counts and
  /// positions.
  void setPurpose(plan::ValueId value, plan::Purpose purpose) {
    segment_.values[value].purpose = purpose;
  }
  /// Appends an op with several results. Names are completed with the unit's prefix.
  std::vector<plan::ValueId>
  emitMany(plan::Op op, const std::vector<std::pair<const char *, plan::Type>> &results);

  /// Emits dropout if this is training and p is not zero. The result has the type of the residual
  /// stream, to which it is added.
  plan::ValueId dropout(plan::ValueId x, double p, const char *what);
  /// Multiplies x by uniform random numbers from 1 - jitter to 1 + jitter, also in evaluation.
  /// Returns x if jitter is zero.
  plan::ValueId jittered(plan::ValueId x, double jitter, const char *what);
  /// Emits dropout of an adapter's operand, in its own type. It uses separate salts, so that
  /// adapters do not change the model's other masks.
  plan::ValueId adapterDropout(plan::ValueId x, double p, const char *what);
  /// x times the factor, with the row counts of x; x itself if the factor is 1.
  plan::ValueId scaled(plan::ValueId x, double factor, const char *what);
  /// Sets the dropout attributes of an op, with the salt of this place in the model.
  void setDropout(plan::Op &op, double p);

  /// The number by which the losses of the microbatch are divided, f32[1]: the number of tokens
  /// that count in the head's loss, or the number of pairs.
  plan::ValueId tokenCount = plan::kNone;
  /// The operand of the head, after the last norm. Later the hidden state of the preceding
  /// multi-token prediction block.
  plan::ValueId hidden = plan::kNone;

  /// The number of the current layer with experts, counted from 0.
  int64_t nextExperts() { return experts_++; }
  /// The number of the current multi-token prediction block, counted from 0.
  int64_t nextPrediction() { return predictions_++; }
  /// The bias, f32[E], that is added to the scores of experts for their choice; kNone if the model
  /// has none.
  plan::ValueId expertBias(int64_t layer, int64_t experts);
  /// Whether the body accumulates sums of the step in a cell with this name.
  bool tallies(std::string_view cell) const;
  /// Adds `scale` times the rows of x, divided by n unless that is kNone, to row `slot` of the sums
  /// in the cell. Returns the sums so far, which the next tally() continues.
  plan::ValueId tally(std::string_view cell, plan::ValueId x, int64_t slot, double scale,
                      plan::ValueId n = plan::kNone);
  /// The number of columns of the sums in the cell.
  int64_t columnsOf(std::string_view cell) const;
  /// A view of the first elements of a row of a matrix.
  plan::ValueId row(plan::ValueId matrix, int64_t index, const plan::Type &type, const char *what);
  /// Stores all tallied sums in their cells.
  void leaveTallies();
  /// Appends the sum of a value over the members of a group. Returns the sum.
  plan::ValueId summed(plan::ValueId value, const char *what, int16_t group);
  int16_t groupOf(plan::GroupKind kind) const { return plan::groupOfKind(plan_, kind); }

private:
  /// The sums of a step in a cell, as far as ops were emitted for them.
  struct Sums {
    uint32_t cell;
    plan::ValueId value;
    bool isFirst = true; ///< still the sums of earlier microbatches
  };

  const plan::Plan &plan_;
  const plan::Role &role_;
  plan::Segment &segment_;
  BodySettings settings_;
  Batch batch_;
  std::unordered_map<std::string, uint32_t> params_; ///< index of each parameter
  std::vector<uint32_t> cells_;                      ///< by parameter
  std::vector<plan::ValueId> weights_; ///< by parameter: live-in value; kNone until used
  std::string paramPrefix_, valuePrefix_;
  int32_t unit_ = 0;
  uint32_t loc_ = plan::kNone;
  int64_t salt_ = 0, adapterSalt_ = 0, experts_ = 0, predictions_ = 0;
  plan::ValueId bias_ = plan::kNone; ///< expert bias of all layers with experts
  std::vector<Sums> sums_;
};

} // namespace shardc::model
