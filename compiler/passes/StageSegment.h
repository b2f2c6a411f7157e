// Writes a segment of a stage: what it has of a body of the whole model, what it receives and
// sends, and what it leaves for other segments of its stage.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/passes/StageCut.h"
#include "compiler/passes/StageSchedule.h"
#include "runtime/plan/Builder.h"

namespace shardc::passes {

/// The links of a stage to its neighbours: the last stage is one of the first, whose next chunk
/// takes what it makes. A rank has a stream for each of its neighbours and each direction, so that
/// no transfer waits for another one.
class Links {
public:
  explicit Links(plan::Plan &plan) : plan_(plan) {}

  plan::Op send(plan::ValueId value, int32_t from, int32_t to, bool isForward);
  plan::Op receive(int32_t from, int32_t to, bool isForward);

private:
  /// The channel runs on the stream of one end; the other one names its own. Between two stages
  /// there may be two channels of a direction, one for each order of the stages.
  plan::Op make(plan::OpKind kind, int32_t from, int32_t to, bool isForward,
                plan::StreamKind stream);

  plan::Plan &plan_;
};

/// What a segment has of a body.
struct SegmentPart {
  PassKind kind;
  int32_t chunk;                              ///< of the model
  bool isFirstHere = true, isLastHere = true; ///< of those that its stage has
};

/// Writes one segment of a stage.
class SegmentWriter {
public:
  SegmentWriter(Links &links, const plan::Segment &body, const StageCut &cut, int32_t stage,
                SegmentPart part)
      : links_(links), body_(body), cut_(cut), stage_(stage), part_(part),
        state_(body.values.size(), plan::kNone) {
    segment_.body = true;
    segment_.values.reserve(body.values.size() + kNewValues);
    segment_.values.resize(body.values.size());
  }

  /// The ops that the segment has of the body.
  void addOps();

  /// Values of the body keep their numbers. Only those that a segment uses are copied, since most
  /// are those of other stages; the others stay empty until they are dropped.
  static void use(plan::Segment &segment, const plan::Segment &body, plan::ValueId value) {
    if (value >= body.values.size() || !segment.values[value].name.empty())
      return;
    segment.values[value] = body.values[value];
    if (plan::ValueId counts = body.values[value].counts; counts != plan::kNone)
      use(segment, body, counts);
  }

  /// The value is what a cell holds at the start.
  void takeFromCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    use(segment_, body_, value);
    segment_.ins.push_back({value, cell, false, shift});
  }
  /// What is left is of the microbatch so many behind the one under way.
  void leaveInCell(plan::ValueId value, uint32_t cell, int64_t shift = 0) {
    segment_.outs.push_back({value, cell, false, shift});
  }

  plan::ValueId newValue(plan::ValueId like, const char *suffix);

  /// Receives what is like `value` into the buffer of `before`, where the predicate holds; `before`
  /// may be kNone where it always does.
  plan::ValueId receive(plan::ValueId value, const char *suffix, int32_t from, bool isForward,
                        plan::Pred pred, plan::ValueId before);

  /// `value` is what was received, in a buffer of its own.
  void copy(plan::ValueId received, plan::ValueId value);

  void send(const std::vector<plan::ValueId> &values, int32_t to, bool isForward);
  std::vector<uint8_t> madeValues() const;

  /// With those of the body's boundaries that belong to the stage, and without what nothing reads.
  plan::Segment take(plan::SegmentKind kind, std::string name);

private:
  /// Room for what is received: to make it later would move all values of the body.
  static constexpr size_t kNewValues = 256;

  plan::Phase phase() const {
    return hasForward(part_.kind) ? plan::Phase::Forward : plan::Phase::Backward;
  }

  bool hasOp(size_t i);
  bool isOfPass(size_t i) const;
  bool isOfEveryPass(size_t i) const;

  /// Whether it makes the step state, or a part of it.
  bool isOfState(const plan::Op &op) const {
    return !op.results.empty() && body_.values[op.results[0]].purpose == plan::Purpose::Step;
  }

  /// Whether the chunk is the one of its stage that has what each stage has once: the first one
  /// begins with it, and the last one ends.
  bool isHere(const plan::Op &op) const;

  /// Gradients of parameters that are made beside those of inputs are left for the other part of
  /// the backward pass, which adds its own contributions and has all of them in the end.
  void moveGradients();
  void addTo(plan::ValueId moved, plan::ValueId made);
  /// Before the other gradients of their unit, which is complete once these are made.
  void putFirst(std::vector<plan::Op> moves);

  /// The gradient of a parameter that the chunk has made in the end; kNone for other cells.
  plan::ValueId gradientOf(const plan::Segment::Boundary &out) const;
  bool isWeights(plan::ValueId made) const { return cut_.isWeightsOnly(body_.values[made].def); }

  plan::ValueId resolved(plan::ValueId value) const {
    return value < state_.size() && state_[value] != plan::kNone ? state_[value] : value;
  }

  void addOp(plan::Op op);

  /// Gradients leave where they are made, the step state where the forward pass ends.
  void addOuts();

  /// Values that its ops read, or that it leaves.
  std::vector<uint8_t> readValues() const;

  /// Also what is loaded, or exchanged with ranks of the stage, for nothing.
  void removeUnread();
  void addIns();

  Links &links_;
  const plan::Segment &body_;
  const StageCut &cut_;
  int32_t stage_;
  SegmentPart part_;
  plan::Segment segment_;
  std::map<std::string, int> uses_; ///< of names of received values
  /// By value: the step state, or the largest magnitudes, that it is on this stage.
  std::vector<plan::ValueId> state_;
};

} // namespace shardc::passes
