// Walks the program of a plan. Finds for each value of the plan which value of the model it is, and
// its placement. Roles advance alternately, and wait for each other at transfers and sums.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/Float8.h"
#include "runtime/plan/Variants.h"
#include "runtime/verify/spec/Moves.h"
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
    /// By kind of cell, figures that a run reports: summands in each microbatch, sorted.
    std::map<CellKind, std::vector<TermId>> reported;
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
  uint32_t index = 0;                    ///< of the role
  std::vector<Run> runs;                 ///< of the first two steps, in order
  size_t at = 0;                         ///< index of the current run
  int64_t step = 0;                      ///< number of the current step
  bool isInSegment = false;              ///< ops of the current run have begun
  bool hasMet = false;                   ///< the segment has a sum with other roles
  std::vector<std::vector<Value>> cells; ///< by cell and slot
  std::vector<Value> values;             ///< of the current segment, by value
  std::vector<uint32_t> ops;             ///< pending ops of the segment
  std::vector<bool> isLeft;              ///< by op: whether it is pending
  std::vector<Memo> *memos = nullptr;    ///< of the segment, by op
  std::map<ChannelId, size_t> turns;     ///< number of sums over several roles so far
  std::vector<Value> ins;                ///< inputs of the current segment
  std::vector<Transfer> transfers;       ///< of the current segment, in order of execution
  const Body *again = nullptr;           ///< the earlier body that the current one repeats
  std::vector<std::vector<Value>> begun; ///< cells at the start of the first step

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
  /// For the specification itself, `goals` holds the steps that were already read. With `skips`,
  /// microbatches and steps that repeat earlier ones are not followed; otherwise, `goals` must have
  /// two steps.
  Walk(const Plan &plan, Terms &terms, const Goals &goals, bool isSpecification, bool skips);

  /// Adds one step of the specification to `goals`. Returns false if the plan is not a
  /// specification; difference() gives the reason.
  bool readStep(Goals &goals);
  /// Whether the plan computes what the goals say. If not, difference() has the first op for which
  /// this is not proved. It is empty if the walk skips what it must follow.
  bool run();
  const std::optional<Finding> &difference() const { return difference_; }
  /// Number of ops that were followed.
  uint64_t visits() const { return visits_; }
  /// See Comparison::declared.
  const std::vector<std::string> &declared() const { return declared_; }

private:
  /// The current op.
  struct At {
    RoleWalk &role;
    const Op &op;
    uint32_t index = 0;
  };
  /// How an op's results follow from its operands.
  struct RuleOf {
    enum Takes : uint8_t { Any, Ones, Step }; ///< Ones: single values; Step: it is part of a step
    Values (Walk::*rule)(const At &);
    Takes takes;
  };

  // Turns.cpp: microbatches that repeat others
  using Kept = std::pair<const Segment *, Variant>; ///< key of a stored Body
  Kept keyOf(const RoleWalk &walk);
  const Body *findBody(RoleWalk &walk);
  bool executeAgain(RoleWalk &walk, bool &hasMoved);
  void keepBody(RoleWalk &walk);

  // Induction.cpp: steps that repeat others
  TermId nextTerm(TermId term);
  State nextState(State then);
  bool isNext(const Value &now, Value then);
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
  void enter(RoleWalk &walk);
  bool endRun(RoleWalk &walk);
  void send(const At &at);
  bool step(RoleWalk &walk, uint32_t op, bool &isBlocked);
  bool finish(const At &at, Values made);
  bool refuseWaiting();
  bool isReady(const RoleWalk &walk, const Op &op) const;
  Value *slot(RoleWalk &walk, uint32_t cell, int64_t shift);
  template <typename... Args>
  Refused refuse(const At &at, fmt::format_string<Args...> why, Args &&...args) {
    return refuseAt(at, fmt::format(why, std::forward<Args>(args)...));
  }
  template <typename... Args> Refused refuse(fmt::format_string<Args...> why, Args &&...args) {
    return refuseAt(fmt::format(why, std::forward<Args>(args)...));
  }
  Refused refuseAt(const At &at, std::string why);
  Refused refuseAt(std::string why);
  void noteForeign(const At &at, size_t result, TermId term);
  TermId innermostForeign(const At &at, TermId term) const;
  std::string unlikeModel(const At &at, size_t result, const Term &made);
  bool dependsOn(const At &at, TermId term) const;
  int64_t microbatch(const RoleWalk &walk) const {
    return walk.step * kStep + walk.run().microbatch;
  }
  static constexpr int64_t kStep = int64_t{1} << 32; ///< microbatch numbers per step

  // Ops.cpp: ops that are not plain
  void declare(std::string what);
  Values follow(const At &at);
  static RuleOf ruleOf(const Op &op);
#define FOLLOW(rule, takes, ...) Values rule(const At &at);
#include "runtime/verify/spec/Spec.def"
  Values followPlain(const At &at);
  void checkCounts(const At &at);
  TermId countsOf(TermId rows);
  bool areCountsOf(const Value &counts, const Value &rows);
  void checkRows(const At &at);
  void checkBlocks(const At &at);
  void checkPositions(const At &at);
  bool takesOnes(const At &at, size_t count);
  Call callOf(const At &at, OpKind kind, size_t operands) const;
  std::vector<State> computed(const At &at, const Call &call);
  static Values valuesOf(std::vector<State> states) {
    return Values(std::make_move_iterator(states.begin()), std::make_move_iterator(states.end()));
  }
  void takeAll(const At &at, State &state, const std::vector<uint16_t> &axes);
  Values viewedBlock(const At &at, const BlockState &from);
  bool isTallied(const State &state) const;
  Values followRow(const At &at, const State &tallied);
  struct Slices {
    std::vector<uint16_t> axes; ///< along which sequences are sliced
    int64_t count = 1;          ///< number of slices
    int64_t distance = 0;       ///< from this rank to the member whose keys these are
    bool isGathered = false;    ///< these are the keys of all slices
    bool areAt(const State &state, int64_t distance) const;
  };
  bool findSlices(const At &at, Slices &slices);
  static Values placedBySlices(std::vector<State> made, const Slices &slices, bool isBack);
  Value added(const At &at, const Value &a, const Value &b);

  // Pieces.cpp: pieces of rows, norms over divided columns
  int64_t sliceOfPieces(const At &at);
  State pieceOf(const At &at, State state, int64_t offset, int64_t size);
  bool isMeanOf(const State &dots, const std::vector<TermId> &factors, int64_t columns,
                int64_t parts);

  // Matrices.cpp: updates of whole matrices
  std::vector<uint16_t> axesOfMatrices(int32_t block) const;
  TermId updateOf(const At &at, size_t param);
  TermId stepOf(const Op &op, OpKind kind, int64_t n, TermId x);
  bool hasWholeMatrices(const At &at);

  // Scales.cpp: 8-bit values, their scales, and amaxes
  std::pair<State, State> quantised(const At &at, const State &x, const State *amax,
                                    bool isTransposed, const Type &type, const Type &scaleType);
  Values followProducer(const At &at, size_t operands);
  State madeAgain(const At &at, Call call);
  Values largestOf(const At &at, Values made, const Values &values, size_t count);
  Values followTransposed8Bits(const At &at);
  std::optional<Maxima> maximaOf(const Value &value, Maxima::Kind kind) const;
  Values movedMaxima(const At &at, Maxima maxima);
  Values viewedMaxima(const At &at, Maxima maxima);
  State amaxOf(const At &at, const State &x, size_t amax, int64_t slot);
  /// Consecutive slots of amaxes; experts have several.
  struct Slots {
    int64_t first = 0, count = 1;
  };
  void useSlots(const At &at, const State &x, const Value &amax, Slots slots);
  void see(const At &at, const State &x, Value &seen, Slots slots);
  void checkBlockEnds(const At &at, const State &x, ScaleBlocks blocks, bool isTransposed);
  Value initialMaxima(const Cell &cell, int64_t steps);
  TermId inType(DType type, TermId term);
  TermId weightIn8Bits(TermId weight, uint8_t result);
  bool isCopyIn8Bits(TermId term) const;

  // Collectives.cpp: collectives, and casts of what they reduce
  void scaleGradient(const At &at, State &gradient);
  Values castBlock(const At &at, BlockState block);
  Values followMove(const At &at);
  State moved(const At &at, const State &x);
  State moved(const At &at, OpKind kind, const State &x, const std::vector<uint16_t> &axes);
  Values movedBlock(const At &at, BlockState x);
  State summedOverSamples(State x);
  Values meet(const At &at, bool &isBlocked);
  std::vector<uint32_t> rolesApart(const At &at) const;
  int64_t coordinate(const RoleWalk &walk, const Op &op) const;

  // Step.cpp: blocks, sums of a step, the optimizer
  Value initial(const Cell &cell, int64_t steps);
  bool hasNeeded(const Cell &cell, const Value &found, const Value &needed) const;
  Value stored(Term::Kind kind, int64_t block, const Type &type, bool isExact, int64_t steps);
  State kept(CellKind kind, const Type &type);
  State biasAfter(const Type &type, int64_t steps);
  State paramState(size_t param, TermId term) const;
  const Goals::Step &goalsOf(const At &at) const {
    return goals_.steps[static_cast<size_t>(at.role.step)];
  }
  TermId parameter(Term::Kind kind, size_t param, int64_t steps) {
    return parameterOfGoal(kind, goalOf_[param], steps);
  }
  TermId parameterOfGoal(Term::Kind kind, int64_t goal, int64_t steps);
  std::optional<std::vector<uint16_t>> divided(int64_t block, int64_t numel) const;
  const Block &blockOf(const BlockState &state) const {
    return plan_.blocks[static_cast<size_t>(state.block)];
  }
  /// The parameters of a block, in the order of their offsets.
  const std::vector<size_t> &paramsOf(int32_t block) const {
    return paramsOf_[static_cast<size_t>(block)];
  }
  std::vector<Contribution> ofAllMicrobatches(const RoleWalk &walk,
                                              const std::vector<TermId> &terms) const;
  bool isOfAll(const RoleWalk &walk, CellKind kind, const Value &sum) const;
  const Value *operandOf(const At &at, std::string_view name) const;
  bool takesGradients(const At &at);
  Values followOptimizer(const At &at);
  void checkLosses(const At &at, const StepState &step, bool isEval);
  int64_t copiesOf(const At &at, const LossSums::Of &of);
  std::optional<std::vector<std::pair<TermId, TermId>>> readLosses(uint32_t segment, bool isEval,
                                                                   std::vector<Values> &cells);
  void checkNorm(const At &at, const Value &squares);
  void checkPlaces(const At &at);
  void checkHyper(const At &at);
  void checkNormPart(const At &at, const State &gradient, size_t param,
                     const std::vector<uint16_t> &axes, int64_t copies);
  std::optional<size_t> paramOf(const At &at, const State &gradient) const;
  bool countsNorm(const RoleWalk &walk, size_t param);
  void checkComplete(const At &at, const State &state, size_t param);
  bool endStep(RoleWalk &walk);
  bool checkTables();
  bool checkTypes();
  int64_t extentOf(const Role &role, uint16_t axis) const;

  const Value &operand(const At &at, size_t i) const { return at.role.values[at.op.operands[i]]; }
  const Type &typeOf(const At &at, ValueId value) const {
    return at.role.segment().values[value].type;
  }

  const Plan &plan_;
  Terms &terms_;
  const Goals &goals_;
  bool isSpecification_, skips_;
  Mesh mesh_;
  Compute compute_;
  Mover mover_;
  State stepState_; ///< of operands `state`: the loss scale
  std::vector<RoleWalk> roles_;
  std::vector<std::vector<size_t>> paramsOf_; ///< of each block
  std::vector<uint16_t> dataAxes_;
  std::map<QueueKey, std::deque<Value>> queues_;
  std::vector<uint32_t> roleOfBlock_; ///< by block: the first role that stores it
  std::vector<int64_t> goalOf_;       ///< of each parameter; -1: the specification lacks it
  std::map<Kept, Body> bodies_;
  std::unordered_map<const Segment *, VariantTable> variants_;
  std::unordered_map<TermId, TermId> nextTerms_;
  std::unordered_map<const BlockState *, bool> begunBlocks_; ///< by block: whether the step used it
  std::map<std::pair<ChannelId, size_t>, std::map<uint32_t, Value>> meetings_;
  using SlotOf = std::pair<uint32_t, int64_t>; ///< role, slot
  using Scaled = std::pair<TermId, int64_t>;   ///< a scaled value, number of slots that scale it
  std::map<SlotOf, Scaled> uses_;              ///< in the current step
  std::map<int64_t, Maxima> sharedSlots_;      ///< by step: those that roles reduce together
  /// In the step before the current one; for a specification, in evaluations.
  std::map<SlotOf, Scaled> scaled_;
  /// Number of roles with losses, by (whether it is an evaluation, step).
  std::map<std::pair<bool, int64_t>, int64_t> rolesWithLosses_;
  std::optional<Finding> difference_;
  /// The first op whose term the model does not have, and what distinguishes it from the model's.
  std::optional<Finding> foreign_;
  TermId foreignTerm_ = kNoTerm;  ///< of the result of `foreign_`
  bool isForeignOperand_ = false; ///< `foreign_` names the operand that is wrong
  std::vector<std::string> declared_;
  uint64_t visits_ = 0;
  const Memo *memoOf(const At &at) const;
  std::unordered_map<const Segment *, std::vector<Memo>> memos_; ///< by op
};

/// The optimizer of a parameter's block; nothing if it is not trained.
std::optional<Optimizer> optimizerOfParam(const Plan &plan, int64_t param);
/// The value that a body has `by` microbatches later.
Value advanced(const Value &value, int64_t by);
/// Whether `now` is advanced(then, by).
bool isLater(const Value &now, const Value &then, int64_t by);

} // namespace shardc::plan::spec
