// A pipeline schedule as data: for each stage, the order of its passes. Everything else about a
// schedule follows from it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/model/Placement.h"
#include "runtime/plan/Plan.h"

namespace shardc::model {

/// What passes compute for a chunk and a microbatch: its output, the gradient of its input, for
/// which the preceding chunk waits, and those of its weights.
enum class PassResult : uint8_t { Output, Inputs, Weights };
inline constexpr std::array kPassResults = {PassResult::Output, PassResult::Inputs,
                                            PassResult::Weights};

/// Kind of a pass: the set of its results. Both is of the last chunk; orders list its passes apart.
enum class PassKind : uint8_t { Forward = 1, Inputs = 2, Weights = 4, Backward = 6, Both = 7 };
inline bool makes(PassKind kind, PassResult result) {
  return (static_cast<int>(kind) >> static_cast<int>(result) & 1) != 0;
}
inline bool hasForward(PassKind kind) { return makes(kind, PassResult::Output); }
inline bool hasInputs(PassKind kind) { return makes(kind, PassResult::Inputs); }
inline PassResult firstResult(PassKind kind) {
  return static_cast<PassResult>(std::countr_zero(static_cast<unsigned>(kind)));
}

/// One kind of pass through one chunk of the model; a segment executes it.
struct StagePart {
  PassKind kind = PassKind::Forward;
  int32_t chunk = 0;
  auto operator<=>(const StagePart &) const = default;
};
/// Seconds of a part, up to a common factor.
using SecondsOf = std::function<double(const StagePart &)>;

/// What a chunk takes from its neighbour: its input, or the gradient of its output.
struct Handover {
  bool isGradient = false;
  int32_t chunk = 0; ///< that takes it
  auto operator<=>(const Handover &) const = default;
  /// The chunk that makes it.
  int32_t maker() const { return chunk + (isGradient ? 1 : -1); }
  /// What it is to its maker.
  PassResult result() const { return isGradient ? PassResult::Inputs : PassResult::Output; }
};

/// The pass of one microbatch through one chunk.
struct StagePass {
  StagePart part;
  int64_t microbatch = 0;
  /// The pass is in one cell with the next pass of the stage, which it may overlap.
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

/// Where an order has a pass.
struct PassPlace {
  size_t row = SIZE_MAX, pass = 0;
  bool isKnown() const { return row != SIZE_MAX; }
  auto operator<=>(const PassPlace &) const = default;
};

/// When a pass runs.
struct PassSpan {
  double begin = 0, end = 0;
};
using PassSpans = std::vector<std::vector<PassSpan>>; ///< by stage

/// What a stage that cannot continue waits for: its pass, and the one that this pass needs.
struct PassWait {
  PassPlace pass, needed;
};

/// The passes of an order, by what they compute.
class PassIndex {
public:
  PassIndex(int32_t chunks, int64_t microbatches)
      : chunks_(chunks), microbatches_(microbatches),
        places_(static_cast<size_t>(chunks * microbatches) * kPassResults.size()) {}

  /// Enters the pass for all that it computes.
  void add(const StagePass &pass, const PassPlace &place) {
    for (PassResult result : kPassResults)
      if (makes(pass.part.kind, result))
        places_[numberOf(result, pass.part.chunk, pass.microbatch)] = place;
  }
  const PassPlace &at(PassResult result, int32_t chunk, int64_t microbatch) const {
    return places_[numberOf(result, chunk, microbatch)];
  }
  /// The operand that the part takes from another chunk, if any.
  std::optional<Handover> operandOf(const StagePart &part) const;
  /// The passes that must end before this one: of its chunk, and the one that makes its operand.
  /// Null if it needs none.
  std::array<const PassPlace *, 2> needsOf(const StagePass &pass) const;

private:
  size_t numberOf(PassResult result, int32_t chunk, int64_t microbatch) const {
    return static_cast<size_t>(chunk * microbatches_ + microbatch) * kPassResults.size() +
           static_cast<size_t>(result);
  }

  int32_t chunks_;
  int64_t microbatches_;
  std::vector<PassPlace> places_;
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
  /// Runs each cell as soon as the one before it and the passes that it needs have ended. All
  /// passes of a cell begin and end with it. Rows end early where they wait for each other.
  PassSpans run(const PassIndex &index, const SecondsOf &seconds) const;
  /// What the stage waits for in its next cell after the passes that have run, if anything.
  std::optional<PassWait> waitOf(const PassIndex &index, const PassSpans &done, size_t row) const;
  /// All passes, row by row.
  std::vector<PassPlace> places() const;
  /// The first pass of the cell that has this pass, and the one after its last pass.
  size_t cellBegin(PassPlace of) const {
    while (of.pass > 0 && rows[of.row][of.pass - 1].isPair)
      --of.pass;
    return of.pass;
  }
  size_t cellEnd(PassPlace of) const {
    while (at(of).isPair)
      ++of.pass;
    return of.pass + 1;
  }
  const StagePass &at(const PassPlace &place) const { return rows[place.row][place.pass]; }
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
  std::optional<Placement> placement = {}; ///< if empty, what the schedule needs
  /// Under 1F1B, forward and backward passes that alternate are cells of two.
  bool overlaps = false;
};

/// The order of a named schedule, which Generators.cpp describes.
PassOrder orderOf(plan::Job::PipelineSchedule schedule, const PipelineShape &shape);
/// The placement that a named schedule needs; `asked` if it may have any.
Placement placementFor(plan::Job::PipelineSchedule schedule, int64_t stages, int64_t chunks,
                       std::string_view asked = "");
/// Zero bubble for any placement and uneven times: orders of which the best depends on transfers. A
/// stage that is free runs the pass that can begin first, and of several the input gradients, for
/// which others wait; weight gradients fill the time in which it would wait. A stage keeps the
/// activations of `limit` microbatches (0: as many as there are stages). Zero bubble and ZB-V come
/// first if they have this placement and keep no more. All seconds must be positive.
std::vector<PassOrder> zeroBubbleGreedy(const PipelineShape &shape, int64_t limit,
                                        const SecondsOf &seconds);
/// Only the forward passes, for evaluations.
PassOrder forwardOnly(const PipelineShape &shape);

} // namespace shardc::model
