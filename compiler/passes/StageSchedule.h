// What follows from the order of a pipeline's passes: the pass during which each stage receives the
// operand of a later pass, the slots of what it keeps, and its program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "compiler/model/PassOrder.h"
#include "compiler/passes/RunOrder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

using model::Handover;
using model::hasForward;
using model::hasInputs;
using model::PassKind;
using model::PassOrder;
using model::PassPlace;
using model::PassResult;
using model::PipelineShape;
using model::Placement;
using model::SecondsOf;
using model::StagePart;
using model::StagePass;

/// A receive that is issued during one pass for a later pass of the stage: of the operand of the
/// microbatch `shift` after the current one.
struct Receive {
  Handover of;
  int64_t shift = 0;
  std::vector<plan::Pred> when; ///< issued in microbatches for which one of these holds
  bool isBeforeOwn = false;     ///< issued before the stage's first pass receives its own input
};

/// The schedule of all stages. Only the order of passes decides how many forward passes a stage
/// runs ahead; a stage that is ready early waits until its successor receives.
class StageSchedule {
public:
  /// The order must have no fault. A backward pass of the last chunk that always directly follows
  /// its forward pass is one pass with it, and if some backward passes of a chunk are divided, all
  /// are, so each part runs once for each microbatch. `seconds`: of each part, up to a common
  /// factor. Receives are placed as if a backward pass takes twice as long as a forward pass, or by
  /// `seconds` if a step is shorter then.
  explicit StageSchedule(const PassOrder &order, const SecondsOf &seconds = {});

  /// Predicted seconds of a step, without transfers.
  double seconds() const { return placed_.seconds; }
  const Placement &placement() const { return order_.placement; }
  int32_t stages() const { return placement().stages(); }
  int64_t microbatches() const { return order_.microbatches; }
  /// The passes that the stage runs in a step, in order.
  const std::vector<StagePass> &passes(int32_t stage) const { return order_.rows[at(stage)]; }
  /// The parts that the stage executes, in order.
  const std::vector<StagePart> &parts(int32_t stage) const { return parts_[at(stage)]; }

  /// The operand that the part takes from another chunk, if any.
  std::optional<Handover> operandOf(const StagePart &part) const { return index_.operandOf(part); }

  /// The receives that each pass of this part issues, in order.
  const std::vector<Receive> &receives(int32_t stage, StagePart by) const {
    return receives_[at(stage)].at(by);
  }
  /// Whether the stage's first pass belongs to this part and issues the receive of its own input.
  bool receivesOwn(int32_t stage, StagePart part) const;
  /// Number of ring slots for operands that wait until they are read; 0 if none waits.
  int32_t slotsOfWaiting(Handover of) const {
    auto found = waiting_.find(of);
    return found == waiting_.end() ? 0 : found->second;
  }
  /// Number of ring slots for values that passes of `from` keep until passes of `to` on the same
  /// stage have read them.
  int32_t slotsFor(StagePart from, const std::set<StagePart> &to) const;
  /// The microbatches that the part runs first and last.
  Runs runsOf(StagePart part) const;

  /// The stage's program. `segmentOf`: the segment of each part.
  std::vector<plan::ProgramNode> program(int32_t stage,
                                         const std::map<StagePart, uint32_t> &segmentOf) const;

private:
  /// A value that one chunk hands to another one.
  struct Transfer {
    double ready = 0; ///< when it is computed if transfers take no time
    PassPlace to, from;
    int32_t channel = 0;
    size_t by = 0; ///< the pass of the stage during which it is received, or made
    bool isSent() const { return from.row != to.row; }
    auto operator<=>(const Transfer &) const = default;
  };
  struct Placed {
    std::vector<Transfer> transfers; ///< in the order in which values become ready
    double seconds = 0;              ///< of a step
  };
  /// From the pass with the first index to that with the second one, both included.
  struct Life {
    size_t begin, last;
    int64_t microbatch;
  };

  static size_t at(int64_t index) { return static_cast<size_t>(index); }
  void joinParts();
  /// The index of the pass in its row.
  size_t indexOf(const StagePart &part, int64_t microbatch) const {
    return index_.at(firstResult(part.kind), part.chunk, microbatch).pass;
  }
  Placed placeReceives(const SecondsOf &seconds) const;
  std::optional<double> secondsWith(const std::vector<Transfer> &transfers,
                                    const SecondsOf &seconds) const;
  std::vector<Receive> receivesOf(StagePart by) const;
  std::vector<plan::Pred> predsOf(std::vector<int64_t> microbatches) const;
  int32_t countWaiting(Handover of) const;
  template <typename Fit> static int32_t fewestSlots(std::vector<Life> lives, Fit fit);

  PassOrder order_; ///< with the parts that segments execute
  model::PassIndex index_;
  std::vector<std::vector<StagePart>> parts_; ///< by stage
  Placed placed_;
  std::vector<std::map<StagePart, std::vector<Receive>>> receives_;
  std::map<Handover, int32_t> waiting_; ///< slots
};

} // namespace shardc::passes
