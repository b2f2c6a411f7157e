// Interprets the progress words of a plan's ranks: numbers of ops, readable positions, and the rank
// that fell behind when work has stopped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/Plan.h"

namespace shardc::exec {

/// Numbers the ops of one plan and explains words of its ranks. Processes with the same plan have
/// the same numbers.
class ProgressMap {
public:
  /// `plan` must outlive the map. The map has no ops if the plan has no roles.
  explicit ProgressMap(const plan::Plan &plan);

  /// The number of an op. Ops of all segments are numbered consecutively.
  uint32_t numberOf(const plan::Segment &segment, size_t op) const;
  /// Text such as `in 'micro: all_gather %W (a.recipe:12)'`, `after '…'` or `creating the channel
  /// of '…'`; empty if the word has no information.
  std::string place(uint32_t word) const;
  /// The position of the rank's most advanced stream, collectives first, and its microbatch if one
  /// of the words has it.
  std::string place(std::span<const uint32_t> words) const;
  /// Explains a stall: names the first rank that fell behind, the collective in which others wait
  /// for it, and its last known position. `words` has the words of all ranks, by stream; all of
  /// them are stuck. `silent` is a rank without a heartbeat, or -1; it is named even if nobody
  /// waits for it.
  std::string explainStall(std::span<const std::vector<uint32_t>> words, int silent) const;

  /// Text to append to the number of a pipeline's rank, such as `, stage 2 of 4`; empty without a
  /// pipeline.
  std::string stageOf(int64_t rank) const;

private:
  struct At {
    uint32_t segment, op; ///< indices; segment in segments_
  };
  /// A sentence that says that `waiter` and possibly other ranks wait for `rank` in a collective or
  /// in the creation of a channel.
  std::string explain(std::span<const std::vector<uint32_t>> words, int rank, int waiter,
                      uint32_t waitedIn) const;
  /// The rank as the subject of a sentence; with a stage, it ends with a comma.
  std::string nameOf(int rank) const;
  /// Text such as ` of microbatch 5` if `word` is in a body and the rank reports its microbatch;
  /// otherwise empty.
  std::string microbatchOf(std::span<const uint32_t> words, uint32_t word) const;
  /// The members of the group of the collective in which `rank` is.
  std::vector<int> membersOf(uint32_t word, int rank) const;
  bool find(uint32_t number, At &at) const;
  /// The label of an op, in the same form as the labels of bound ops.
  std::string label(uint32_t number) const;

  const plan::Plan &plan_;
  std::vector<const plan::Segment *> segments_; ///< segments of all roles
  std::vector<uint32_t> begins_;                ///< by segment: number of its first op
};

} // namespace shardc::exec
