// Creates one segment of a pipeline stage: its ops of the body, its sends and receives, and the
// values that it stores for other segments of the stage.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/passes/RunOrder.h"
#include "compiler/passes/StageCut.h"
#include "compiler/passes/StageSchedule.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// By value: whether an op of the segment makes it.
std::vector<uint8_t> madeValues(const plan::Segment &segment);
/// By value: whether an op of the segment reads it or a boundary stores it.
std::vector<uint8_t> readValues(const plan::Segment &segment);

/// The part of a body that a segment executes.
struct SegmentPart {
  PassKind kind;
  int32_t chunk;                              ///< number of the chunk in the model
  bool isFirstHere = true, isLastHere = true; ///< first or last chunk of its stage
  Runs runs;                                  ///< of the segment
};

/// A written segment. It has few of the body's values, and numbers of its own for them.
struct StageSegment {
  plan::Segment segment;
  std::vector<plan::ValueId> bodyOf;  ///< by value: its number in the body; kNone: only here
  std::vector<plan::ValueId> localOf; ///< by value of the body; kNone: not here

  /// The number of a value of the body, which is added if it is not here.
  plan::ValueId use(const plan::Segment &body, plan::ValueId value);
  /// Orders the values as in the body, followed by the values that only this segment has.
  void orderAsBody();
};

/// Writes one segment of a stage. While it does, values have their numbers of the body.
class SegmentWriter {
public:
  /// `storage` has an empty entry for each value of the body. Several writers use it, one after the
  /// other.
  SegmentWriter(plan::Plan &plan, const plan::Segment &body, const StageCut &cut, int32_t stage,
                SegmentPart part, std::vector<plan::Value> &storage)
      : plan_(plan), body_(body), cut_(cut), stage_(stage), part_(part), storage_(storage),
        state_(body.values.size(), plan::kNone) {
    segment_.body = true;
    segment_.values = std::move(storage);
  }

  /// Adds the ops of the body that this segment executes.
  void addOps();

  /// Copies a value of the body under its number. Only used values are copied, since most values
  /// belong to other stages.
  void use(plan::ValueId value) {
    if (value >= body_.values.size() || !segment_.values[value].name.empty())
      return;
    used_.push_back(value);
    segment_.values[value] = body_.values[value];
    if (plan::ValueId counts = body_.values[value].counts; counts != plan::kNone)
      use(counts);
  }

  /// Reads the value from a cell.
  void takeFromCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    use(value);
    segment_.ins.push_back({value, cell, false, shift});
  }
  /// Stores the value in a cell; it belongs to the microbatch `shift` after the current one.
  void leaveInCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    segment_.outs.push_back({value, cell, false, shift});
  }

  plan::ValueId newValue(plan::ValueId like, const char *suffix);

  /// Appends a receive of a value with the type of `value`. If the predicate does not hold, the
  /// result is `before`, whose buffer it shares; `before` may be kNone if the predicate always
  /// holds.
  plan::ValueId receive(plan::ValueId value, const char *suffix, int32_t from, bool isForward,
                        plan::Pred pred, plan::ValueId before);

  /// Copies a received value into a separate buffer, as `value`. The body must have one of the two.
  void copy(plan::ValueId received, plan::ValueId value);

  void send(const std::vector<plan::ValueId> &values, int32_t to, bool isForward);
  std::vector<uint8_t> madeValues() const { return passes::madeValues(segment_); }

  /// Returns the finished segment, with those boundaries of the body that belong to the stage, and
  /// gives `storage` back to the next writer.
  StageSegment take(plan::SegmentKind kind, std::string name);

private:
  /// A send or receive between stages. A rank has one stream per direction and end, so that
  /// transfers do not wait for each other. A channel names one stream, that of the sender or of the
  /// receiver; the op at the other end runs in a stream of its own. Two stages can have two
  /// channels for activations, one with each stage as the sender, and two for gradients.
  plan::Op linkOp(plan::OpKind kind, int32_t from, int32_t to, bool isForward);
  plan::Phase phase() const {
    return hasForward(part_.kind) ? plan::Phase::Forward : plan::Phase::Backward;
  }

  bool hasOp(size_t i);
  bool isOfPass(size_t i) const { return isOfEveryPass(i) || makes(part_.kind, cut_.resultOf(i)); }
  bool isOfEveryPass(size_t i) const;

  /// Whether the op computes the step state or a part of it.
  bool isOfState(const plan::Op &op) const {
    return !op.results.empty() && body_.values[op.results[0]].purpose == plan::Purpose::Step;
  }

  /// Whether this segment executes an op that a stage executes once: at the beginning of its first
  /// chunk, or at the end of its last one.
  bool isHere(const plan::Op &op) const;

  /// If parameter gradients are computed in an earlier pass, together with the loss or with input
  /// gradients, leaves them for the pass of weight gradients, which adds its contributions and
  /// stores the final sums.
  void moveGradients();
  /// Inserts ops before the other gradients of their unit, because the unit is complete once those
  /// are computed.
  void putFirst(std::vector<plan::Op> moves);

  /// The last parameter gradient that the chunk computes for this boundary; kNone for other cells.
  plan::ValueId gradientOf(const plan::Segment::Boundary &out) const;
  bool isMadeHere(plan::ValueId made) const {
    return makes(part_.kind, cut_.resultOf(body_.values[made].def));
  }

  plan::ValueId resolved(plan::ValueId value) const {
    return value < state_.size() && state_[value] != plan::kNone ? state_[value] : value;
  }

  void addOp(plan::Op op);

  /// Adds the outputs: gradients in the segment that computes them, the step state in the segment
  /// that ends the forward pass.
  void addOuts();

  /// Moves the used values to a segment that has no others.
  StageSegment withoutUnused();

  plan::Plan &plan_;
  const plan::Segment &body_;
  const StageCut &cut_;
  int32_t stage_;
  SegmentPart part_;
  std::vector<plan::Value> &storage_;
  plan::Segment segment_;
  std::vector<plan::ValueId> used_; ///< values of the body
  std::map<std::string, int> uses_; ///< how often each name of a received value was used
  /// Indexed by value: the stage's current version of the step state or of the amax values.
  std::vector<plan::ValueId> state_;
};

} // namespace shardc::passes
