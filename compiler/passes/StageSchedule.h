// Pipeline schedules: the order in which each stage runs the passes of microbatches, and the pass
// during which it receives the operand of a later pass.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::passes {

/// Kind of a pass. Backward combines Inputs and Weights.
enum class PassKind : uint8_t {
  Forward,
  Backward,
  Both,    ///< forward and backward together, in the last chunk
  Inputs,  ///< input gradients, for which the preceding stage waits
  Weights, ///< weight gradients
};

/// Whether the pass computes the forward pass of its chunk.
bool hasForward(PassKind kind);
/// Whether the pass needs the gradient of the chunk's output from another stage.
bool hasInputs(PassKind kind);

/// One kind of pass through one chunk of a stage; a segment executes it.
struct StagePart {
  PassKind kind = PassKind::Forward;
  int32_t chunk = 0;
  auto operator<=>(const StagePart &) const = default;
};

/// The pass of one microbatch through one chunk.
struct StagePass {
  StagePart part;
  int64_t microbatch = 0;
};

/// A receive that is issued during one pass for a later pass of the stage: for the part `of`, and
/// for the microbatch `shift` after the current one.
struct Receive {
  StagePart of;
  int64_t shift = 0;
  std::vector<plan::Pred> when; ///< issued in microbatches for which one of these holds
};

/// Duration of a pass in seconds, and the time from its start until its output is ready to be sent.
struct PassSeconds {
  double all = 0, made = 0;
};

/// The numbers that determine a schedule.
struct PipelineShape {
  int64_t stages = 1;
  /// Chunks of layers per stage: chunk c of stage s has the number c * stages + s.
  int64_t chunks = 1;
  int64_t microbatches = 1;
  /// Microbatches that a chunk processes before the next chunk; 0: the number of stages.
  int64_t group = 0;
  auto operator<=>(const PipelineShape &) const = default;
};

/// The schedule of all stages. Only the order of passes decides how many forward passes a stage
/// runs ahead; a stage that is ready early waits until its successor receives.
class StageSchedule {
public:
  /// 1F1B: a stage runs one forward pass for each later stage, then alternates forward and backward
  /// passes. With several chunks this is Megatron's interleaved schedule: a stage runs further
  /// ahead, so that it has work while other stages process its microbatch.
  static StageSchedule oneForwardOneBackward(const PipelineShape &shape);
  /// ZB-H1 (zero bubble): like 1F1B, but input gradients, for which other stages wait, come first,
  /// and weight gradients fill the time in which a stage would wait.
  static StageSchedule zeroBubble(const PipelineShape &shape);
  /// Only the forward passes, in the order of the interleaved schedule. For evaluations.
  static StageSchedule forwardOnly(const PipelineShape &shape);

  /// A repeated sequence of passes; each repetition advances the microbatch by `step`.
  struct Repetition {
    size_t length = 1, count = 1;
    int64_t step = 0;

    /// Lines of plan text.
    size_t lines() const { return length + (count > 1 ? 1 : 0); }
  };

  enum class Kind : uint8_t { OneForwardOneBackward, ZeroBubble, ForwardOnly };
  /// A schedule from a cache that plans of the same shape share, because automatic recomputation
  /// and searches compile a recipe many times. Thread-safe.
  static std::shared_ptr<const StageSchedule> shared(Kind kind, const PipelineShape &shape);

  const PipelineShape &shape() const { return shape_; }
  /// The passes that the stage runs in a step, in order.
  const std::vector<StagePass> &passes(int32_t stage) const { return passes_[at(stage)]; }
  /// The parts that the stage executes, in order.
  const std::vector<StagePart> &parts(int32_t stage) const { return parts_[at(stage)]; }

  /// The receives that each pass of this part issues.
  const std::vector<Receive> &receives(int32_t stage, StagePart by) const {
    return receives_[at(stage)].at(by);
  }
  /// Whether the stage's first pass belongs to this part and issues the receive of its own input.
  bool receivesOwn(int32_t stage, StagePart part) const;
  /// Number of ring slots for values that were received for this part and not yet read; 0 if it
  /// receives none.
  int32_t slotsOfReceived(int32_t stage, StagePart of) const {
    return received_[at(stage)][numberOf(stage, of)];
  }
  /// Number of ring slots for values that passes of `from` keep for passes of `to` on the same
  /// stage.
  int32_t slotsBetween(int32_t stage, StagePart from, StagePart to) const;

  /// Predicted seconds of a step, given the duration of each pass and of a transfer.
  double secondsWith(const std::function<PassSeconds(int32_t, const StagePass &)> &of,
                     double transfer) const {
    return *secondsWith(receivedBy_, of, transfer);
  }

  /// The stage's program. `segmentOf`: the segment of each part.
  std::vector<plan::ProgramNode> program(int32_t stage,
                                         const std::map<StagePart, uint32_t> &segmentOf) const;

private:
  explicit StageSchedule(const PipelineShape &shape);

  static constexpr size_t kNoPass = std::numeric_limits<size_t>::max();

  struct Place {
    int32_t stage;
    size_t pass;
  };

  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  int64_t group() const { return shape_.group > 0 ? shape_.group : shape_.stages; }
  /// The order of forward passes over chunks and microbatches.
  std::vector<StagePass> forwards() const;
  /// The chunk at the same position of the backward order.
  int32_t mirrored(const StagePass &pass) const {
    return static_cast<int32_t>(shape_.chunks) - 1 - pass.part.chunk;
  }
  void add(int32_t stage, PassKind kind, const StagePass &like);
  void finish();
  std::optional<Place> producerOf(int32_t stage, const StagePass &pass) const;
  void findTimes();
  void placeReceives();
  std::vector<int32_t> slotsOf(int32_t stage) const;
  int32_t countReceived(int32_t stage, StagePart of) const;
  std::vector<Repetition> piecesOf(int32_t stage) const;
  /// Index of a part in parts(stage).
  size_t numberOf(int32_t stage, StagePart part) const;
  size_t passCount() const;
  size_t receiverOf(int32_t stage, size_t i, bool isSecond) const;
  std::optional<double>
  secondsWith(const std::vector<std::vector<size_t>> &receivedBy,
              const std::function<PassSeconds(int32_t, const StagePass &)> &of,
              double transfer = 0) const;
  std::vector<Receive> receivesOf(int32_t stage, StagePart by) const;
  int64_t lastChunk() const { return shape_.chunks * shape_.stages - 1; }
  bool isLastChunk(int32_t stage, int32_t chunk) const {
    return chunk * shape_.stages + stage == lastChunk();
  }
  std::vector<plan::Pred> predsOf(const std::vector<int64_t> &microbatches) const;

  PipelineShape shape_;
  std::vector<std::vector<StagePass>> passes_; ///< by stage
  std::vector<std::vector<StagePart>> parts_;
  /// By chunk number and microbatch: index of its forward pass, and of the pass that computes its
  /// input gradient.
  std::vector<std::vector<size_t>> forward_, gradient_;
  /// By stage and pass: seconds, if every forward pass takes one. Empty once receives are assigned.
  std::vector<std::vector<double>> begins_, ends_;
  /// By stage and pass: the pass during which its input is received (possibly itself), or none.
  std::vector<std::vector<size_t>> receivedBy_;
  std::vector<std::map<StagePart, std::vector<Receive>>> receives_;
  std::vector<std::vector<int32_t>> slots_;    ///< by stage, producing part and consuming part
  std::vector<std::vector<int32_t>> received_; ///< by stage and consuming part
  /// Pieces of the programs; only for cached schedules.
  std::vector<std::vector<Repetition>> pieces_;
};

} // namespace shardc::passes
