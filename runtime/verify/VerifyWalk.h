// The traversal of a role's program that all analyses of programs share: runs of segments, loops,
// microbatches, and the ring slots that rotate with them. An analysis is a class that derives from
// ProgramWalk and supplies the transfer function of one run.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {

/// Fixed-point detection for loops. Consecutive iterations form a group if they run the same
/// variants for successively later microbatches. An iteration may start in the same state as the
/// one before, apart from rotated ring slots and later microbatches. Then all remaining iterations
/// of the group behave the same, and their final state follows without walking them. So a pipeline
/// with thousands of microbatches is verified in the time of a few.
class LoopIterations {
public:
  /// `counts` has, for each segment, how often the program names it around the loop; variants
  /// depend on it. A plain loop repeats one segment that uses no rings.
  LoopIterations(Inspection &inspection, uint32_t role, const ProgramNode &loop,
                 const std::vector<int64_t> &counts, bool isPlain);

  /// How many iterations directly after this one execute the same variants, with all microbatches
  /// later by a constant.
  int64_t alikeAfter(int64_t iteration) const;
  /// Microbatches per iteration.
  int64_t step() const { return step_; }
  /// Whether a run reads or writes the cell.
  bool touches(uint32_t cell) const { return cell < isTouched_.size() && isTouched_[cell]; }
  /// Cells here include one entry per slot of a ring. Iterations move the content of each ring by
  /// some slots: returns the entry that corresponds to `cell` after this many iterations. A cell
  /// that the loop does not touch corresponds to itself.
  uint32_t at(uint32_t cell, int64_t iterations) const {
    return touches(cell) ? rings_.at(cell, iterations * step_) : cell;
  }

private:
  bool isRegular() const { return step_ > 0; }
  static int64_t stepOf(const Role &role, const ProgramNode &loop);
  void cut(const ProgramNode &run, const VariantTable &table, int64_t microbatches);
  void touch(const std::vector<Segment::Boundary> &boundaries);

  const RoleRings &rings_;
  int64_t count_, step_;
  std::vector<int64_t> cuts_; ///< first iterations in which a run may execute another variant
  std::vector<bool> isTouched_;
};

/// `Check` is the analysis (CRTP), and `State` is what it knows between two runs. It has
///   bool isStopped()                       true ends the walk, such as at the limit of findings
///   void start(segment, State&)            the segment that runs if no checkpoint is loaded
///   void apply(segment, Variant, State&)   changes the state by one run of a segment
///   void runSteps(node, State&)            the loop of training steps
///   void runEvery(node, State&)            what only some steps do, such as an evaluation
/// and, unless each iteration is followed (Walk::EachTurn),
///   bool isSame(State, State)              the states are equal
///   bool isSteady(State, State, LoopIterations)   the states before and after an iteration differ
///                                          only in microbatches and rotated slots
///   void skip(State, State&, LoopIterations, n)   applies n more iterations like the one that led
///                                          from the first state to the second
enum class Walk : uint8_t { Skipping, EachTurn };
template <typename Check, typename State, Walk kind = Walk::Skipping>
class ProgramWalk : protected RoleCheck {
protected:
  ProgramWalk(Inspection &inspection, uint32_t roleIndex)
      : RoleCheck(inspection, roleIndex), rings_(inspection.ringsOf(roleIndex)),
        tables_(inspection.variantTablesOf(roleIndex)), counts_(role_.segments.size()) {
    for (const Segment &segment : role_.segments)
      usesRings_.push_back(touchesRings(rings_, segment));
  }
  ~ProgramWalk() = default;

  void walk(const std::vector<ProgramNode> &nodes, State &state) {
    for (size_t k = 0; k < nodes.size() && !check().isStopped(); ++k)
      visit(nodes[k], state);
  }
  /// Walks the nodes of a step or an `every`, with microbatches counted from 0.
  void walkAnew(const std::vector<ProgramNode> &nodes, State &state) {
    std::vector<int64_t> before = std::exchange(counts_, namedMicrobatches(role_, nodes));
    walk(nodes, state);
    counts_ = std::move(before);
  }
  void runNode(const ProgramNode &node, State &state) {
    if (node.microbatch)
      return runFor(node.segment, node.microbatch->at(turn_), state);
    if (!role_.segments[node.segment].body)
      return repeat(node, state);
    int64_t named = std::exchange(counts_[node.segment], node.count);
    ProgramNode iteration{ProgramNode::Run, node.segment, 1, {}};
    iteration.microbatch = MicrobatchNumber{1, 0};
    ProgramNode loop{ProgramNode::Loop, kNone, node.count, {iteration}};
    walkLoop(loop, state, !usesRings_[node.segment]);
    counts_[node.segment] = named;
  }
  /// The cell at this ring slot's position in the current microbatch. Other cells stay where they
  /// are.
  uint32_t placeOf(uint32_t cell) const { return rings_.at(cell, microbatch_); }

  const RoleRings &rings_;
  const std::vector<VariantTable> &tables_; ///< by segment
  std::vector<bool> usesRings_;             ///< by segment
  std::vector<int64_t> counts_;             ///< by segment: how often the step or `every` names it
  int64_t turn_ = 0;                        ///< current iteration of the innermost loop
  int64_t microbatch_ = 0;                  ///< microbatch of the current run

private:
  static constexpr bool skips = kind != Walk::EachTurn;

  Check &check() { return static_cast<Check &>(*this); }

  void visit(const ProgramNode &node, State &state) {
    switch (node.kind) {
    case ProgramNode::Start:
      return check().start(node.segment, state);
    case ProgramNode::Run:
      return check().runNode(node, state);
    case ProgramNode::Loop:
      return walkLoop(node, state, /*isPlain=*/false);
    case ProgramNode::Steps:
      return check().runSteps(node, state);
    case ProgramNode::Every:
      return check().runEvery(node, state);
    }
  }

  State copyIf(bool isNeeded, const State &state) {
    return isNeeded && report_.spend(role_.cells.size()) ? state : State();
  }

  /// Walks a loop, and skips the iterations whose effect is already known.
  void walkLoop(const ProgramNode &loop, State &state, bool isPlain) {
    LoopIterations iterations(report_, roleIndex_, loop, counts_, isPlain);
    int64_t outer = turn_;
    for (int64_t i = 0; i < loop.count && !check().isStopped(); ++i) {
      turn_ = i;
      int64_t left = skips ? iterations.alikeAfter(turn_) : 0;
      State before = copyIf(left > 0, state);
      walk(loop.children, state);
      if constexpr (skips)
        if (left > 0 && !check().isStopped() && check().isSteady(before, state, iterations)) {
          check().skip(before, state, iterations, left);
          i += left;
        }
    }
    turn_ = outer;
  }

  void runFor(uint32_t segment, int64_t microbatch, State &state) {
    microbatch_ = role_.segments[segment].body ? microbatch : 0;
    check().apply(segment, tables_[segment].of(microbatch, counts_[segment]), state);
    microbatch_ = 0;
  }

  /// Repeats a node until the state no longer changes.
  void repeat(const ProgramNode &node, State &state) {
    for (int64_t i = 0; i < node.count && !check().isStopped(); ++i) {
      State before = copyIf(skips && i > 0, state);
      check().apply(node.segment, Variant::Only, state);
      if constexpr (skips)
        if (i > 0 && !check().isStopped() && check().isSame(before, state))
          return;
    }
  }
};

} // namespace shardc::plan::verifier
