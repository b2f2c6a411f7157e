// The traversal of a role's program that all analyses share: runs, loops, microbatches, and the
// ring slots that rotate with them. An analysis supplies the transfer function of a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/verify/VerifyImpl.h"
#include "runtime/verify/VerifyRings.h"

namespace shardc::plan::verifier {

/// Fixed-point detection for loops: groups of iterations that do the same for successively later
/// microbatches. If an iteration starts in the same state as the preceding one, apart from rotated
/// ring slots and later microbatches, all following iterations of the group are proven, and their
/// final state is known.
class LoopIterations {
public:
  /// `counts` has the named runs of each segment around the loop. A plain loop is one run of a
  /// segment without rings.
  LoopIterations(Inspection &inspection, uint32_t role, const ProgramNode &loop,
                 const std::vector<int64_t> &counts, bool isPlain);

  /// Numbers of iterations directly after, or before, this one that execute the same, with all
  /// microbatches later by a constant.
  int64_t alikeAfter(int64_t iteration) const;
  int64_t alikeBefore(int64_t iteration) const;
  bool isPlain() const { return isPlain_; }
  /// The runs of one iteration.
  const std::vector<ProgramNode> &runs() const { return runs_; }
  /// Microbatches per iteration.
  int64_t step() const { return step_; }
  /// The earliest microbatch of the iteration's runs.
  int64_t earliest(int64_t iteration) const { return step_ * iteration + earliest_; }
  /// Whether a run reads or writes the cell.
  bool touches(uint32_t cell) const { return cell < isTouched_.size() && isTouched_[cell]; }
  /// The ring slot with this position `turns` iterations later.
  uint32_t at(uint32_t cell, int64_t iterations) const {
    return touches(cell) ? rings_.at(cell, iterations * step_) : cell;
  }

private:
  bool isRegular() const { return step_ > 0; }
  static int64_t stepOf(const Role &role, const ProgramNode &loop);
  void cut(const ProgramNode &run, const VariantTable &table, int64_t microbatches);
  void touch(const std::vector<Segment::Boundary> &boundaries);

  const RoleRings &rings_;
  const std::vector<ProgramNode> &runs_;
  bool isPlain_;
  int64_t count_, step_, earliest_ = INT64_MAX;
  std::vector<int64_t> cuts_; ///< first iterations in which a run may execute another variant
  std::vector<bool> isTouched_;
};

/// A Check derives from the walk of its State, and has
///   bool isStopped()                           nothing more is to be found
///   void start(segment, State&)                what happens unless a checkpoint is loaded
///   void apply(segment, Variant, State&)       one run
///   void runSteps(node, State&)                the loop of steps
///   void runEvery(node, State&)                what some steps do
/// and, unless each turn is followed,
///   bool isSame(State, State)                  nothing has changed
///   bool isSteady(State, State, LoopIterations)     a turn has changed nothing but microbatches
///   void skip(State, State&, LoopIterations, n)     n turns more do what this one has done, from
///   the
///                                              first state to the second one
/// A walk backwards goes from the end of the program to its begin.
enum class Walk : uint8_t { Forwards, Backwards, EachTurn };
template <typename Check, typename State, Walk kind = Walk::Forwards>
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
      visit(nodes[isBackward ? nodes.size() - 1 - k : k], state);
  }
  /// Walks the nodes of a step or an `every`, which count microbatches from 0.
  void walkAnew(const std::vector<ProgramNode> &nodes, State &state) {
    std::vector<int64_t> before = std::exchange(counts_, namedRuns(role_, nodes));
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
  /// The slot of a ring cell in the current microbatch; other cells are returned unchanged.
  uint32_t placeOf(uint32_t cell) const { return rings_.at(cell, microbatch_); }

  const RoleRings &rings_;
  const std::vector<VariantTable> &tables_; ///< of each segment
  std::vector<bool> usesRings_;             ///< of each segment
  std::vector<int64_t> counts_;             ///< by segment: its named runs in the step or `every`
  int64_t turn_ = 0;                        ///< current iteration of the innermost loop
  int64_t microbatch_ = 0;                  ///< microbatch of the current run

private:
  static constexpr bool isBackward = kind == Walk::Backwards, skips = kind != Walk::EachTurn;

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

  /// Walks the iterations whose effect is not known yet.
  void walkLoop(const ProgramNode &loop, State &state, bool isPlain) {
    LoopIterations iterations(report_, roleIndex_, loop, counts_, isPlain);
    int64_t outer = turn_;
    for (int64_t i = 0; i < loop.count && !check().isStopped(); ++i) {
      turn_ = isBackward ? loop.count - 1 - i : i;
      int64_t left = !skips       ? 0
                     : isBackward ? iterations.alikeBefore(turn_)
                                  : iterations.alikeAfter(turn_);
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
