// What the oracle keeps of each rank while it executes a plan: its memory, and the tasks that it is
// in. Only Oracle.cpp includes this.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "Runs.h"
#include "runtime/plan/Plan.h"

namespace shardc::plan::oracle {

inline constexpr int64_t kGranule = 16; ///< bytes that carry one name; places are multiples of it

using Label = uint64_t;
inline constexpr Label kNothing = 0; ///< never written
inline constexpr Label kMissing = 1; ///< of a value that is not there: matches nothing
inline constexpr Label kPadding =
    2; ///< between parts of a pack: never written, so it matches everything
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

/// An op of a segment that a rank is in.
struct Task {
  const Op *op;
  uint32_t index;
  bool isBackground;
  bool executes;
  int64_t microbatch = 0; ///< of what a transfer gives or takes
  bool hasStarted = false, hasEnded = false;
  bool hasMet = false; ///< of a collective: all members have issued it
  std::vector<Access> reads, writes;
};

struct SegmentRun {
  OneRun run;
  int epoch = 0; ///< steps and parts of them so far: slots are empty when one begins
  std::pair<int, int64_t> part = {0, 0}; ///< of the program: loops before it, and its step
  bool isBackground = false;             ///< starts the segment beside what follows
  bool isMarked = false;                 ///< the host reads the step state when it has ended
  bool isStepEnd = false;                ///< and all that it saves
};

/// A segment under way: the program's, or a background segment beside it.
struct Lane {
  bool isActive = false;
  uint32_t segment = kNone;
  std::vector<Task> tasks;
  std::array<std::vector<uint32_t>, kStreamsMax> queues; ///< tasks that are left, first first
  std::array<size_t, kStreamsMax> heads{};
  std::vector<Access> outs; ///< of a background segment: what its cells should hold at its end
};

struct Rank {
  int64_t index;
  const Role *role;
  std::array<Labels, kArenaCount> memory;
  std::vector<bool> isSaved; ///< each cell
  std::vector<Labels> cells; ///< what each cell should hold; empty: nothing
  std::vector<bool> isFollowed;
  Slots<Labels> slots; ///< the same of slots, and of cells that are followed like them
  int epoch = 0;
  std::vector<SegmentRun> runs;
  size_t at = 0;
  Lane main, background;

  Lane &laneOf(const Task &task) { return task.isBackground ? background : main; }
};

/// What the scheduler may do next with a rank's task.
struct Action {
  enum Kind : uint8_t { Start, Meet, End };
  Rank *rank;
  Task *task;
  Kind kind;
};

/// An op that is held back while anything else can be done, or until another op has ended: then it
/// comes first.
struct Held {
  int64_t rank = -1;
  uint32_t segment = kNone, op = kNone;
  bool isEnd = false;
  uint32_t until = kNone;
};

/// Steps of its loops that a run executes: it may begin with any, where a checkpoint is loaded, and
/// end after any.
struct Steps {
  int64_t first = 1, last = std::numeric_limits<int64_t>::max();
  bool isLoaded = false; ///< nothing starts: the same cells are filled beforehand
};

} // namespace shardc::plan::oracle
