// What follows from the order of a pipeline's passes: the pass during which each stage receives the
// operand of a later pass, the slots of what it keeps, and its program.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "compiler/model/PassOrder.h"
#include "compiler/passes/RunOrder.h"
#include "runtime/plan/Plan.h"

namespace shardc::passes {

using model::hasForward;
using model::hasInputs;
using model::PassKind;
using model::PassOrder;
using model::PipelineShape;
using model::Placement;
using model::StagePart;
using model::StagePass;

/// What a chunk takes from its neighbour: its input, or the gradient of its output.
struct Handover {
  bool isGradient = false;
  int32_t chunk = 0; ///< that takes it
  auto operator<=>(const Handover &) const = default;
};

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
  using SecondsOf = std::function<double(const StagePart &)>;

  /// The order must have no fault. A backward pass of the last chunk that always directly follows
  /// its forward pass is one pass with it, and if some backward passes of a chunk are divided, all
  /// are, so each part runs once for each microbatch. `seconds`: of each part, up to a common
  /// factor. Receives are placed as if a backward pass takes twice as long as a forward pass, or by
  /// `seconds` if a step is shorter then.
  explicit StageSchedule(const PassOrder &order, const SecondsOf &seconds = {});

  /// A repeated sequence of passes; each repetition advances the microbatch by `step`.
  struct Repetition {
    size_t length = 1, count = 1;
    int64_t step = 0;

    /// Lines of plan text.
    size_t lines() const { return length + (count > 1 ? 1 : 0); }
  };

  using Generator = PassOrder (*)(const PipelineShape &);
  /// A generated schedule from a cache that plans of the same shape share, because automatic
  /// recomputation and searches compile a recipe many times. Thread-safe.
  static std::shared_ptr<const StageSchedule> shared(Generator generator,
                                                     const PipelineShape &shape);

  const Placement &placement() const { return placement_; }
  int32_t stages() const { return placement_.stages(); }
  int64_t microbatches() const { return microbatches_; }
  /// The passes that the stage runs in a step, in order.
  const std::vector<StagePass> &passes(int32_t stage) const { return passes_[at(stage)]; }
  /// The parts that the stage executes, in order.
  const std::vector<StagePart> &parts(int32_t stage) const { return parts_[at(stage)]; }

  /// The operand that the part takes from another chunk, if any.
  std::optional<Handover> operandOf(const StagePart &part) const;
  /// The chunk that makes the operand.
  static int32_t producerOf(const Handover &of) { return of.chunk + (of.isGradient ? 1 : -1); }

  /// The receives that each pass of this part issues, in order.
  const std::vector<Receive> &receives(int32_t stage, StagePart by) const {
    return receives_[at(stage)].at(by);
  }
  /// Whether the stage's first pass belongs to this part and issues the receive of its own input.
  bool receivesOwn(int32_t stage, StagePart part) const;
  /// Number of ring slots for operands that wait until they are read; 0 if none waits.
  int32_t slotsOfWaiting(Handover of) const;
  /// Number of ring slots for values that passes of `from` keep until passes of `to` on the same
  /// stage have read them.
  int32_t slotsFor(StagePart from, const std::set<StagePart> &to) const;
  /// The microbatches that the part runs first and last.
  Runs runsOf(StagePart part) const;

  /// The stage's program. `segmentOf`: the segment of each part.
  std::vector<plan::ProgramNode> program(int32_t stage,
                                         const std::map<StagePart, uint32_t> &segmentOf) const;

private:
  static constexpr size_t kNoPass = std::numeric_limits<size_t>::max();
  using ByPass = std::vector<std::vector<size_t>>; ///< a pass's index, by stage and pass

  struct Place {
    int32_t stage;
    size_t pass;
  };
  /// The pass that takes an operand, and the order in which operands become ready.
  struct Arrival {
    double ready = 0;
    size_t pass = 0;
    auto operator<=>(const Arrival &) const = default;
  };
  /// From the pass with the first index to that with the second one, both included.
  struct Life {
    size_t begin, last;
    int64_t microbatch;
  };

  static size_t at(int64_t index) { return static_cast<size_t>(index); }
  void takeRows(const PassOrder &order);
  void indexPasses();
  std::optional<Place> producerOf(const StagePass &pass) const;
  bool isReceived(const StagePass &pass) const;
  void findTimes(const SecondsOf &seconds);
  double placeReceives(const SecondsOf &seconds);
  size_t receiverOf(int32_t stage, size_t i, bool isSecond) const;
  int32_t countWaiting(Handover of) const;
  static int32_t fewestSlots(const std::vector<Life> &lives, int32_t least);
  std::vector<Repetition> piecesOf(int32_t stage) const;
  size_t longestPiece(int32_t stage) const;
  std::optional<double> secondsWith(const ByPass &receivedBy, const SecondsOf &seconds) const;
  std::vector<Receive> receivesOf(int32_t stage, StagePart by) const;
  std::vector<plan::Pred> predsOf(std::vector<int64_t> microbatches) const;

  Placement placement_;
  int64_t microbatches_;
  std::vector<std::vector<StagePass>> passes_; ///< by stage
  std::vector<std::vector<StagePart>> parts_;
  /// By part and microbatch: the index of its pass.
  std::map<StagePart, std::vector<size_t>> indexOf_;
  /// By stage and pass: when it begins and ends if transfers take no time.
  std::vector<std::vector<double>> begins_, ends_;
  std::vector<std::vector<Arrival>> arrivals_; ///< by stage, in the order of receives
  ByPass receivedBy_; ///< the pass during which its input is received (possibly itself), or none
  std::vector<std::map<StagePart, std::vector<Receive>>> receives_;
  std::map<Handover, int32_t> waiting_; ///< slots
  std::vector<std::vector<Repetition>> pieces_; ///< of programs, by stage
};

} // namespace shardc::passes
