// A pipeline schedule as data: for each stage, the order of its passes. Everything else about a
// schedule follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/model/Placement.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

/// Kind of a pass. Backward combines Inputs and Weights.
enum class PassKind : uint8_t {
  Forward,
  Backward,
  Both,    ///< forward and backward together, in the last chunk; orders list the passes apart
  Inputs,  ///< input gradients, for which the preceding chunk waits
  Weights, ///< weight gradients
};

/// Whether the pass computes the forward pass of its chunk.
inline bool hasForward(PassKind kind) {
  return kind == PassKind::Forward || kind == PassKind::Both;
}
/// Whether the pass computes the gradient of the chunk's input.
inline bool hasInputs(PassKind kind) {
  return kind == PassKind::Backward || kind == PassKind::Inputs || kind == PassKind::Both;
}

/// One kind of pass through one chunk of the model; a segment executes it.
struct StagePart {
  PassKind kind = PassKind::Forward;
  int32_t chunk = 0;
  auto operator<=>(const StagePart &) const = default;
};

/// The pass of one microbatch through one chunk.
struct StagePass {
  StagePart part;
  int64_t microbatch = 0;
  /// Begins a cell of two passes that may overlap; the next pass of the stage ends it.
  bool isPair = false;
  auto operator<=>(const StagePass &) const = default;
};

/// The name of a pass in files: chunk, kind, microbatch, as in `2F0`.
std::string nameOf(const StagePass &pass);

/// The reason why an order of passes cannot be executed.
struct OrderFault {
  enum class Kind : uint8_t { Shape, Cell, Placement, Twice, Missing, Order, Cycle, Transfer };
  Kind kind;
  int64_t row = 0, column = 0; ///< from 1; 0: the whole file, or the whole row
  std::string reason;
};

struct PassOrder {
  Placement placement;
  int64_t microbatches = 1;
  std::vector<std::vector<StagePass>> rows; ///< by stage
  /// By stage and pass: the column in the file, from 1; empty if the order is of no file.
  std::vector<std::vector<int32_t>> columns;

  /// The placement must be one of all chunks and rows. An order is executable exactly if each pass
  /// of each chunk and microbatch is there once, on the stage that has the chunk, and if rows and
  /// data dependences have no cycle.
  std::optional<OrderFault> check() const;
  int64_t columnOf(size_t stage, size_t pass) const {
    return columns.empty() ? static_cast<int64_t>(pass) + 1 : columns[stage][pass];
  }
};

/// The numbers that determine a generated order.
struct PipelineShape {
  int64_t stages = 1;
  int64_t chunks = 1; ///< chunks of layers per stage
  int64_t microbatches = 1;
  /// Microbatches that a chunk processes before the next chunk; 0: the number of stages.
  int64_t group = 0;
  /// Of schedules that may have any; looped if empty.
  std::optional<Placement> placement = {};
  auto operator<=>(const PipelineShape &) const = default;
};

/// 1F1B: a stage runs one forward pass for each later stage, then alternates forward and backward
/// passes. With several chunks this is Megatron's interleaved schedule: a stage runs further ahead,
/// so that it has work while other stages process its microbatch.
PassOrder oneForwardOneBackward(const PipelineShape &shape);
/// ZB-H1 (zero bubble): like 1F1B, but input gradients, for which other stages wait, come first,
/// and weight gradients fill the time in which a stage would wait.
PassOrder zeroBubble(const PipelineShape &shape);
/// Breadth first: each chunk runs all microbatches; backward passes in reverse. In any placement.
PassOrder loopedBfs(const PipelineShape &shape);
/// ZB-V: two chunks per stage in a V; no stage waits between its first and its last pass if all
/// passes take equally long.
PassOrder zbV(const PipelineShape &shape);
/// DualPipeV: in a V, forward and backward passes of two microbatches form pairs. Needs twice as
/// many microbatches as stages.
PassOrder dualPipeV(const PipelineShape &shape);
/// The generator of a named schedule.
PassOrder (*generatorOf(plan::Job::PipelineSchedule schedule))(const PipelineShape &);
/// The placement that a named schedule needs; `asked` if it may have any.
Placement placementFor(plan::Job::PipelineSchedule schedule, int64_t stages, int64_t chunks,
                       std::string_view asked = "");
/// Only the forward passes, for evaluations.
PassOrder forwardOnly(const PipelineShape &shape);

} // namespace shardc::model
