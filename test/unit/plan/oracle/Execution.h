// The oracle's state of each rank while it executes a plan: memory, and tasks in progress. Only
// Oracle.cpp includes this.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "Runs.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

inline constexpr int64_t kGranule = 16; ///< bytes with one label; places are multiples of it

using Label = uint64_t;
inline constexpr Label kNothing = 0; ///< never written
inline constexpr Label kMissing = 1; ///< label of a value that does not exist: matches nothing
inline constexpr Label kPadding =
    2; ///< label between the parts of a pack: never written, so it matches everything
inline constexpr Label kFirstFree = 3;

using Labels = std::vector<Label>;

inline int64_t granules(int64_t bytes) { return (bytes + kGranule - 1) / kGranule; }

/// A piece of one rank's memory.
struct Bytes {
  Arena arena;
  int64_t begin; ///< granule
};

struct Access {
  Bytes at;
  Labels labels;
  bool isTaken = false; ///< a result of the op takes over the buffer
  const Value *value;
};

/// An op of a segment that a rank executes.
struct Task {
  const Op *op;
  uint32_t index;
  bool isBackground;
  bool executes;
  bool hasStarted = false, hasEnded = false;
  bool hasMet = false; ///< whether all members have issued the collective
  std::vector<Access> reads, writes;
};

struct SegmentRun {
  OneRun run;
  std::pair<int, int64_t> part = {0, 0}; ///< number of loops earlier in the program; step
  bool isBackground = false;             ///< starts the segment in the background
  bool isMarked = false;                 ///< the host reads the step state at its end
  bool isStepEnd = false;                ///< the host also reads everything that it saves
};

/// A segment in progress: the program's, or a background segment beside it.
struct Lane {
  bool isActive = false;
  uint32_t segment = kNone;
  std::vector<Task> tasks;
  std::array<std::vector<uint32_t>, kStreamsMax> queues; ///< tasks still to do, in order
  std::array<size_t, kStreamsMax> heads{};
  /// Contents that the cells of a background segment must have at its end.
  std::vector<Access> outs;
};

struct Rank {
  int64_t index;
  const Role *role;
  std::array<Labels, kArenaCount> memory;
  std::vector<bool> isSaved;                    ///< for each cell
  std::vector<std::map<int64_t, Labels>> cells; ///< what each slot of a cell must hold, if anything
  std::vector<SegmentRun> runs;
  size_t at = 0;
  Lane main, background;

  Lane &laneOf(const Task &task) { return task.isBackground ? background : main; }
};

/// A possible next action of the scheduler for a rank's task.
struct Action {
  enum Kind : uint8_t { Start, Meet, End };
  Rank *rank;
  Task *task;
  Kind kind;
};

/// An op that is held back. It runs when nothing else can run, or, before all others, when another
/// given op has ended.
struct Held {
  int64_t rank = -1;
  uint32_t segment = kNone, op = kNone;
  bool isEnd = false;
  uint32_t until = kNone;
};

/// The steps that a run executes: it may begin at any step by loading a checkpoint, and end after
/// any step.
struct Steps {
  int64_t first = 1, last = std::numeric_limits<int64_t>::max();
  bool isLoaded = false; ///< 'start' is skipped: its cells have been filled before
};

} // namespace shardc::plan::oracle
