// What the stages of a pipeline do when: which passes of which microbatches each of them runs in
// which order, and during which pass it receives what a later one takes.
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

/// What runs at once of a microbatch. Backward is Inputs and Weights in one.
enum class PassKind : uint8_t {
  Forward,
  Backward,
  Both,    ///< forward and backward, at the end of the model
  Inputs,  ///< of the backward pass, what leads to the gradients that the stage before takes
  Weights, ///< the rest of it
};

bool hasForward(PassKind kind);
/// Whether it takes the gradient of what the layers make, unless it makes that itself.
bool hasInputs(PassKind kind);

/// A pass through one of the chunks of layers that a stage has; the runs of a segment.
struct StagePart {
  PassKind kind = PassKind::Forward;
  int32_t chunk = 0;
  auto operator<=>(const StagePart &) const = default;
};

struct StagePass {
  StagePart part;
  int64_t microbatch = 0;
};

/// What passes receive for later ones of their stage: the pass `of` of the microbatch that is
/// `shift` behind the one under way takes it.
struct Receive {
  StagePart of;
  int64_t shift = 0;
  std::vector<plan::Pred> when; ///< one of them holds in the microbatches that receive it
};

/// Seconds of a pass, and from its begin until it has made what another stage takes.
struct PassSeconds {
  double all = 0, made = 0;
};

struct PipelineShape {
  int64_t stages = 1;
  /// Of layers, on each stage: chunk c of stage s is the one with number c * stages + s.
  int64_t chunks = 1;
  int64_t microbatches = 1;
  /// Microbatches that a chunk runs before the next one does; 0: as many as there are stages.
  int64_t group = 0;
  auto operator<=>(const PipelineShape &) const = default;
};

/// The passes of all stages. They may run any number of forward passes ahead as far as the order of
/// a stage says so; a stage that is ready early waits for the next one to receive.
class StageSchedule {
public:
  /// 1F1B: a stage runs as many forward passes ahead as it has stages behind it, and then one
  /// forward and one backward pass in turn. With chunks it runs more ahead, so that it has
  /// something to do while the other stages have its microbatch: Megatron's interleaved schedule.
  static StageSchedule oneForwardOneBackward(const PipelineShape &shape);
  /// Like 1F1B, but only what other stages wait for comes first. What is left of the backward
  /// passes fills the time in which a stage would wait: ZB-H1.
  static StageSchedule zeroBubble(const PipelineShape &shape);
  static StageSchedule forwardOnly(const PipelineShape &shape);

  /// A piece of a program: passes that are repeated, each time of microbatches `step` behind those
  /// of the time before.
  struct Repetition {
    size_t length = 1, count = 1;
    int64_t step = 0;

    /// Lines of text.
    size_t lines() const { return length + (count > 1 ? 1 : 0); }
  };

  enum class Kind : uint8_t { OneForwardOneBackward, ZeroBubble, ForwardOnly };
  /// One of these, which plans of the same shape share: a recipe is compiled many times where the
  /// compiler chooses what is recomputed, or tries what makes a plan fit. Any thread may ask.
  static std::shared_ptr<const StageSchedule> shared(Kind kind, const PipelineShape &shape);

  const PipelineShape &shape() const { return shape_; }
  const std::vector<StagePass> &passes(int32_t stage) const { return passes_[at(stage)]; }
  /// Parts that the stage runs, in order.
  const std::vector<StagePart> &parts(int32_t stage) const { return parts_[at(stage)]; }

  /// What passes of the part receive.
  const std::vector<Receive> &receives(int32_t stage, StagePart by) const {
    return receives_[at(stage)].at(by);
  }
  /// Whether the first pass of the stage is one of the part, and takes what it has to receive
  /// itself.
  bool receivesOwn(int32_t stage, StagePart part) const;
  /// Slots for what has been received and not taken yet by passes of the part; 0 if none is.
  int32_t slotsOfReceived(int32_t stage, StagePart of) const {
    return received_[at(stage)][numberOf(stage, of)];
  }
  /// Slots for what passes of `from` leave to those of `to`, both parts of the stage.
  int32_t slotsBetween(int32_t stage, StagePart from, StagePart to) const;

  /// Seconds of a step with passes that take so long, and transfers that take `transfer`.
  double secondsWith(const std::function<PassSeconds(int32_t, const StagePass &)> &of,
                     double transfer) const {
    return *secondsWith(receivedBy_, of, transfer);
  }

  /// The runs of the stage; `segmentOf` has the segment of each part.
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
  /// The order in which chunks take turns, forward.
  std::vector<StagePass> forwards() const;
  /// The chunk that takes this one's turn backward.
  int32_t mirrored(const StagePass &pass) const {
    return static_cast<int32_t>(shape_.chunks) - 1 - pass.part.chunk;
  }
  void add(int32_t stage, PassKind kind, const StagePass &like);
  void finish();
  std::optional<Place> makerOf(int32_t stage, const StagePass &pass) const;
  void findTimes();
  void placeReceives();
  std::vector<int32_t> slotsOf(int32_t stage) const;
  int32_t countReceived(int32_t stage, StagePart of) const;
  std::vector<Repetition> piecesOf(int32_t stage) const;
  /// Of a part among those of its stage.
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
  /// By the number of the chunk in the model and the microbatch: the pass that runs it forward, and
  /// the one that makes its gradient.
  std::vector<std::vector<size_t>> forward_, gradient_;
  /// Of passes that take one unit forward; none once it is known who receives what.
  std::vector<std::vector<double>> begins_, ends_;
  /// By stage and pass: the pass that receives what it takes, itself, or none.
  std::vector<std::vector<size_t>> receivedBy_;
  std::vector<std::map<StagePart, std::vector<Receive>>> receives_;
  std::vector<std::vector<int32_t>> slots_; ///< by stage and the numbers of both parts
  std::vector<std::vector<int32_t>>
      received_; ///< by stage and the number of the part that takes it
  std::vector<std::vector<Repetition>> pieces_; ///< of programs, if they are shared
};

} // namespace shardc::passes
