// Walks the program of a plan. Finds for each value of the plan which value of the model it is, and
// its placement. Roles advance alternately, and wait for each other at transfers and sums.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/Float8.h"
#include "runtime/plan/Variants.h"
#include "runtime/verify/spec/Compute.h"
#include "runtime/verify/spec/Specification.h"

namespace shardc::plan::spec {

/// The terms that the specification computes, which are those of the model.
struct Goals {
  const Plan *plan = nullptr;                         ///< the specification
  std::map<std::string, int64_t, std::less<>> params; ///< the number of each parameter, by name
  /// One step. It begins with the results of the step before.
  struct Step {
    /// By parameter: the summands of its gradient in each microbatch, sorted; empty if the
    /// parameter is not trained.
    std::vector<std::vector<TermId>> gradients;
    /// Loss and tokens of each loss of a microbatch: in training, and in an evaluation before the
    /// step.
    std::vector<std::pair<TermId, TermId>> losses, evaluated;
    std::vector<TermId> loads; ///< of experts: summands in each microbatch, sorted
    /// Pairs of values that the same slot of amaxes scales, in training and in that evaluation.
    std::set<std::pair<TermId, TermId>> evaluatedScales;
  };
  std::vector<Step> steps;
  const Op *stepBegin = nullptr; ///< the op of the specification that begins a step
  int64_t microbatches = 0, evalMicrobatches = 0;

  bool isTrained(int64_t param) const {
    return !steps[0].gradients[static_cast<size_t>(param)].empty();
  }
};

/// One execution of a segment by the program.
struct Run {
  uint32_t segment = kNone;
  int64_t microbatch = 0, count = 1; ///< number of the microbatch, and number of all of them
  bool isRepeated = false;           ///< the program runs all microbatches one after the other
  bool isStepBegin = false, isStepEnd = false, isEvalEnd = false;
};

/// The channel of a transfer, and the coordinate of the receiving role.
using QueueKey = std::pair<ChannelId, int64_t>;

/// A value that a body has sent or received.
struct Transfer {
  QueueKey key;
  bool isSend = false;
  Value value;
};

/// A body that was followed: its inputs, transfers and outputs. A body with later microbatches and
/// otherwise equal inputs is not followed again.
struct Body {
  int64_t microbatch = 0;
  std::vector<Value> ins, outs;
  std::vector<Transfer> transfers;
};

/// The operands and results of an op in an earlier microbatch. They are used again if the operands
/// differ only in the microbatch.
struct Memo {
  bool isKnown = false;
  int64_t microbatch = 0;
  std::vector<Value> operands, made;
};

/// A role and its position in the program.
struct RoleWalk {
  const Role *role = nullptr;
  uint32_t index = 0;                     ///< of the role
  std::vector<Run> runs;                  ///< of the first two steps, in order
  size_t at = 0;                          ///< index of the current run
  int64_t step = 0;                       ///< number of the current step
  bool isInSegment = false;               ///< ops of the current run have begun
  bool hasMet = false;                    ///< the segment has a sum with other roles
  std::vector<std::vector<Value>> cells;  ///< by cell and slot
  std::vector<Value> values;              ///< of the current segment, by value
  std::vector<uint32_t> ops;              ///< pending ops of the segment
  std::vector<bool> isLeft;               ///< by op: whether it is pending
  std::vector<Memo> *memos = nullptr;     ///< of the segment, by op
  std::map<ChannelId, size_t> turns;      ///< number of sums over several roles so far
  std::vector<Value> ins;                 ///< inputs of the current segment
  std::vector<Transfer> transfers;        ///< of the current segment, in order of execution
  const Body *again = nullptr;            ///< the earlier body that the current one repeats
  std::map<QueueKey, size_t> given;       ///< number of its sends that were already executed
  std::vector<std::vector<Value>> before; ///< cells after the last of repeated runs
  std::vector<std::vector<Value>> begun;  ///< cells at the start of the first step

  const Run &run() const { return runs[at]; }
  const Segment &segment() const { return role->segments[run().segment]; }
  Variant variant() const { return {run().microbatch, run().count}; }
  bool isDone() const { return at == runs.size(); }
  /// Whether the second step comes next.
  bool isAtSecondStep() const {
    return !isInSegment && !isDone() && step == 0 && run().isStepBegin;
  }
  bool endsWithStep() const { return runs.back().isStepEnd; }
};

/// One walk over a plan, or over the specification itself. Refers to the plan, `terms` and `goals`,
/// which must outlive it.
class Walk {
public:
  /// For the specification itself, `goals` holds the steps that were already read.
  Walk(const Plan &plan, Terms &terms, const Goals &goals, bool isSpecification);
  /// Sets the function that is called if the goals lack the second step.
  void readsNextStepBy(std::function<bool()> read) { readNextStep_ = std::move(read); }

  /// Adds one step of the specification to `goals`. Returns false if the plan is not a
  /// specification; difference() gives the reason.
  bool readStep(Goals &goals);
  /// Whether the plan computes what the goals say. If not, difference() has the first op for which
  /// this is not proved.
  bool run();
  const std::optional<Finding> &difference() const { return difference_; }
  /// Number of ops that were followed.
  uint64_t visits() const { return visits_; }
  /// See Comparison::declared.
  const std::vector<std::string> &declared() const { return declared_; }

private:
  using Values = std::vector<Value>;
  struct At;
  using Rule = std::optional<Values> (Walk::*)(const At &); ///< computes an op's results
  /// The current op.
  struct At {
    RoleWalk &role;
    const Op &op;
    uint32_t index = 0;
  };

  // Turns.cpp: microbatches that repeat others
  using Kept = std::pair<const Segment *, Variant>; ///< key of a stored Body
  enum class Again : uint8_t { No, Yes, Waits };
  Kept keyOf(const RoleWalk &walk);
  const Body *findBody(RoleWalk &walk);
  Again executeAgain(RoleWalk &walk, bool &hasMoved);
  Again followAfterAll(RoleWalk &walk);
  void keepBody(RoleWalk &walk);
  bool skipLikeRuns(RoleWalk &walk);

  // Induction.cpp: steps that repeat others
  TermId nextTerm(TermId term);
  bool isNext(const State &now, const State &then);
  bool isNext(const Value &now, const Value &then);
  bool isNext(const Maxima &now, const Maxima &then);
  bool isInduction();
  void beginSteps(RoleWalk &walk);
  void noteUse(const Value &value);

  // Walk.cpp: programs and segments
  void addRuns(RoleWalk &walk, const std::vector<ProgramNode> &nodes);
  void addBodies(RoleWalk &walk, const std::vector<ProgramNode> &nodes,
                 const std::vector<int64_t> &named);
  bool start(RoleWalk &walk);
  bool followStart(RoleWalk &walk, uint32_t segment);
  bool hasScales(const Role &role, const Value &value, const Maxima &needed) const;
  bool advance(RoleWalk &walk, bool &hasMoved);
  bool enter(RoleWalk &walk);
  bool leave(RoleWalk &walk);
  bool endRun(RoleWalk &walk);
  void send(const At &at);
  bool step(RoleWalk &walk, uint32_t op, bool &isBlocked);
  bool finish(const At &at, Values made);
  bool refuseWaiting();
  bool isReady(const RoleWalk &walk, const Op &op) const;
  Value *slot(RoleWalk &walk, uint32_t cell, int64_t shift);
  Refused refuse(const At &at, std::string why);
  Refused refuse(std::string why);
  /// Refuses an op whose results Compute cannot derive.
  Refused refuseComputed(const At &at) { return refuse(at, compute_.why()); }
  void noteForeign(const At &at, size_t result);
  std::string meant(const At &at) const;
  int64_t microbatch(const RoleWalk &walk) const {
    return walk.step * kStep + walk.run().microbatch;
  }
  static constexpr int64_t kStep = int64_t{1} << 32; ///< microbatch numbers per step

  // Ops.cpp: ops that are not plain
  void declare(std::string what);
  std::optional<Values> follow(const At &at);
  static Rule ruleOf(OpKind kind);
  std::optional<Values> followPlain(const At &at);
  bool countsItsRows(const At &at);
  bool namesItsBlock(const At &at);
  bool takeAll(const At &at, State &state, const std::vector<uint16_t> &axes);
  std::optional<Values> followShardRows(const At &at);
  std::optional<Values> followShardBwd(const At &at);
  std::optional<Values> followProductSquares(const At &at);
  std::optional<Values> followLoad(const At &at);
  std::optional<Values> followView(const At &at);
  std::optional<Values> followBlockView(const At &at, const BlockState &from);
  std::optional<Values> followRow(const At &at, const State &tallied);
  std::optional<Values> followRunningMean(const At &at);
  std::optional<Values> followPack(const At &at);
  std::optional<Values> followTranspose(const At &at);
  std::optional<Values> followMergeSlices(const At &at);
  std::optional<Values> followVocabStats(const At &at);
  std::optional<Values> followVocabLoss(const At &at);
  std::optional<Values> followAttentionPart(const At &at);
  std::optional<Values> followAttentionJoin(const At &at);
  struct Slices {
    std::vector<uint16_t> axes; ///< along which sequences are sliced
    int64_t count = 1;          ///< number of slices
    int64_t distance = 0;       ///< from this rank to the member whose keys these are
    bool isGathered = false;    ///< these are the keys of all slices
    bool areAt(const State &state, int64_t distance) const;
  };
  bool findSlices(const At &at, Slices &slices);
  static Values placedBySlices(std::vector<State> made, const Slices &slices, bool isBack);
  std::optional<Value> added(const At &at, const Value &a, const Value &b);

  // Pieces.cpp: pieces of rows, norms over divided columns
  std::optional<Values> followPiece(const At &at, State state);
  int64_t sliceOfPieces(const At &at);
  std::optional<State> pieceOf(const At &at, State state, int64_t offset, int64_t size);
  std::optional<Values> followJoin(const At &at);
  std::optional<Values> followNormPart(const At &at);
  bool isMeanOf(const State &dots, const std::vector<TermId> &factors, int64_t columns,
                int64_t parts);

  // Matrices.cpp: updates of whole matrices
  std::vector<uint16_t> axesOfMatrices(int32_t block) const;
  TermId updateOf(const At &at, size_t param);
  TermId stepOf(const Op &op, OpKind kind, int64_t n, TermId x);
  std::optional<Values> followMuonUpdate(const At &at);
  std::optional<Values> followMuonStep(const At &at);
  bool hasWholeMatrices(const At &at);

  // Scales.cpp: 8-bit values, their scales, and amaxes
  /// How a value is quantised: with one scale from `amax`, or without it, in blocks.
  struct Quantised {
    const State &x;
    const std::optional<State> &amax;
    bool isTransposed;
    const Type *type, *scaleType; ///< this rank's types of the 8-bit copy and of its scale
  };
  std::optional<std::pair<State, State>> quantised(const At &at, const Quantised &how);
  std::optional<Values> followQuantize(const At &at);
  std::optional<Call> callOf(const At &at, size_t operands);
  std::optional<Values> followProducer(const At &at, size_t operands);
  std::optional<State> madeAgain(const At &at, Call call);
  std::optional<Values> largestOf(const At &at, Values made, const Values &values, size_t count);
  std::optional<Values> followGrouped(const At &at);
  std::optional<Values> followTransposed8Bits(const At &at);
  std::optional<Values> followAmaxShard(const At &at);
  std::optional<Values> followQuantizeShard(const At &at);
  std::optional<Values> followWeightScales(const At &at);
  bool shareSlots(const At &at, const Maxima &maxima);
  std::optional<Values> movedMaxima(const At &at, Maxima maxima);
  std::optional<Values> viewedMaxima(const At &at, const Maxima &maxima);
  std::optional<Values> endMaxima(const At &at);
  std::optional<State> amaxOf(const At &at, const State &x, size_t amax, int64_t slot);
  /// Consecutive slots of amaxes; experts have several.
  struct Slots {
    int64_t first = 0, count = 1;
  };
  bool isZero(const Value &value) const;
  std::set<std::pair<TermId, TermId>> scalesOfEvaluation() const;
  bool useSlots(const At &at, const State &x, const Value &amax, Slots slots);
  bool see(const At &at, const State &x, Value &seen, Slots slots);
  bool cutsNoBlock(const At &at, const State &x, ScaleBlocks blocks, bool isTransposed);
  State keptAmaxes(const Type &type);
  Value initialMaxima(const Cell &cell);
  TermId inType(DType type, TermId term);
  TermId weightIn8Bits(TermId weight, uint8_t result);
  bool isCopyIn8Bits(TermId term) const;

  // Moves.cpp: collectives, and casts of what they reduce
  bool scaleGradient(const At &at, State &gradient);
  std::optional<Values> followCast(const At &at, BlockState block);
  std::optional<Values> followMove(const At &at);
  std::optional<State> moved(const At &at, const State &x);
  std::optional<Values> movedBlock(const At &at, const BlockState &x);
  bool sumAlong(const At &at, State &state, uint16_t axis);
  bool isInnermostSlice(const State &state, const std::vector<uint16_t> &axes) const;
  State summedOverSamples(State x);
  std::optional<State> summed(const At &at, State x, uint16_t axis);
  std::optional<State> largest(const At &at, State x, uint16_t axis);
  std::optional<State> gathered(const At &at, State x, uint16_t axis);
  std::optional<State> scattered(const At &at, State x, uint16_t axis);
  State takenApart(State x, uint16_t axis) const;
  std::optional<State> shifted(const At &at, State x, const std::vector<uint16_t> &axes);
  std::optional<State> exchanged(const At &at, State x, const std::vector<uint16_t> &axes);
  std::optional<State> routed(const At &at, State x, const std::vector<uint16_t> &axes);
  bool meet(const At &at, Values &made, bool &isBlocked);
  std::vector<uint32_t> rolesApart(const At &at) const;
  int64_t coordinate(const RoleWalk &walk, const Op &op) const;

  // Step.cpp: blocks, sums of a step, the optimizer
  Value initial(const RoleWalk &walk, const Cell &cell);
  State paramState(size_t param, TermId term) const;
  int64_t goalOf(size_t param) const;
  const Goals::Step &goalsOf(const At &at) const {
    return goals_.steps[static_cast<size_t>(at.role.step)];
  }
  TermId parameter(Term::Kind kind, size_t param, int64_t steps) {
    return parameterOfGoal(kind, goalOf(param), steps);
  }
  TermId parameterOfGoal(Term::Kind kind, int64_t goal, int64_t steps);
  std::optional<std::vector<uint16_t>> divided(const Block &block, int64_t numel) const;
  std::optional<Values> followStep(const At &at);
  std::optional<Values> beginStep(const At &at);
  std::optional<Values> beginEval(const At &at);
  std::optional<Values> updateBias(const At &at);
  std::optional<Values> followInit(const At &at);
  std::optional<Values> finishSums(const At &at);
  std::optional<Values> followLossAdd(const At &at);
  std::optional<Values> followSquares(const At &at);
  std::optional<Values> followCopy(const At &at) { return Values{operand(at, 0)}; }
  std::optional<Values> followSumsPack(const At &at);
  bool takesGradients(const At &at);
  std::optional<Values> followOptimizer(const At &at);
  bool checkLosses(const At &at, const StepState &step, bool isEval);
  int64_t copiesOf(const At &at, const State &loss, const State &tokens);
  std::optional<std::vector<std::pair<TermId, TermId>>> readLosses(uint32_t segment, bool isEval,
                                                                   std::vector<Values> &cells);
  bool checkNorm(const At &at, const Value &squares);
  bool checkHyper(const At &at);
  bool checkNormPart(const At &at, const State &gradient, size_t param,
                     const std::vector<uint16_t> &axes, int64_t copies);
  size_t paramOf(const At &at, const State &gradient) const;
  bool countsNorm(const RoleWalk &walk, size_t param);
  std::set<uint16_t> axesOfParam(size_t param) const;
  bool isComplete(const At &at, const State &state, size_t param);
  bool endStep(RoleWalk &walk);
  bool checkTables();
  int64_t extentOf(const Role &role, uint16_t axis) const;

  const Value &operand(const At &at, size_t i) const { return at.role.values[at.op.operands[i]]; }
  const Type &typeOf(const At &at, ValueId value) const {
    return at.role.segment().values[value].type;
  }

  const Plan &plan_;
  Terms &terms_;
  const Goals &goals_;
  bool isSpecification_;
  Compute compute_;
  std::vector<RoleWalk> roles_;
  std::vector<std::vector<size_t>> paramsOf_; ///< of each block
  std::vector<uint16_t> dataAxes_;
  std::map<QueueKey, std::deque<Value>> queues_;
  std::vector<uint32_t> roleOfBlock_; ///< by block: the first role that stores it
  std::vector<int64_t> goalOf_;       ///< of each parameter
  std::map<Kept, Body> bodies_;
  std::unordered_map<const Segment *, VariantTable> variants_;
  bool followsAll_ = false;    ///< repeated bodies wait for each other, so all are followed
  bool followsSecond_ = false; ///< the second step is not like the first, so it is followed too
  std::function<bool()> readNextStep_;
  std::unordered_map<TermId, TermId> nextTerms_;
  std::unordered_map<const BlockState *, bool> begunBlocks_; ///< by block: whether the step used it
  std::map<std::pair<ChannelId, size_t>, std::map<uint32_t, Value>> meetings_;
  using SlotOf = std::pair<uint32_t, int64_t>; ///< role, slot
  using Scaled = std::pair<TermId, int64_t>;   ///< a scaled value, number of slots that scale it
  std::map<SlotOf, Scaled> uses_;              ///< in the current step
  /// In the step before the current one; for a specification, in evaluations.
  std::map<SlotOf, Scaled> scaled_;
  /// Number of roles with losses, by (whether it is an evaluation, step).
  std::map<std::pair<bool, int64_t>, int64_t> rolesWithLosses_;
  std::optional<Finding> difference_;
  /// The first op whose term the model does not have, with the term that was probably meant.
  std::optional<Finding> foreign_;
  bool isForeignOperand_ = false; ///< `foreign_` names the operand that is wrong
  std::vector<std::string> declared_;
  uint64_t visits_ = 0;
  const Memo *memoOf(const At &at) const;
  std::unordered_map<const Segment *, std::vector<Memo>> memos_; ///< by op
};

/// The value that a body has `by` microbatches later.
Value advanced(const Value &value, int64_t by);
/// Whether `now` is advanced(then, by).
bool isLater(const Value &now, const Value &then, int64_t by);

} // namespace shardc::plan::spec
